"""User functions in Spark's workers."""

from __future__ import annotations

from types import ModuleType

from pyspark import cloudpickle


def travel_by_value(module: ModuleType) -> None:
    """Ships the functions of a module by value to workers that cannot import it."""
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
