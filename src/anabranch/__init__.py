"""Anabranch: adaptive continuous queries over data streams, on Spark.

Importing the package costs nothing and needs no Spark; the public names are fetched when first used.

    import anabranch
    session = anabranch.Session(spark)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anabranch import errors
    from anabranch.api import ContinuousQuery, Session
    from anabranch.spark.handle import QueryHandle
    from anabranch.spark.session import local_session

    __version__: str

__all__ = ["ContinuousQuery", "QueryHandle", "Session", "__version__", "errors", "local_session"]


def __getattr__(name: str) -> object:
    match name:
        case "ContinuousQuery" | "QueryHandle" | "Session":
            return getattr(import_module("anabranch.api"), name)
        case "local_session":
            return import_module("anabranch.spark.session").local_session
        case "errors":
            return import_module("anabranch.errors")
        case "__version__":
            return _version()
    raise AttributeError(f"module 'anabranch' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("anabranch")
    except PackageNotFoundError:
        return "0+source"
