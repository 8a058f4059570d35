"""Locations of files: converts user input to Arrow's file system and to Spark's path.

Invariant: Arrow and Spark open the same folder. A path without a scheme, or with the prefix `file:`, is local to the
driver and the executors. It is taken literally, because Hadoop does not decode `%20` and an Arrow URI would. Any other
location is a URI that both support.
"""

from __future__ import annotations

import os

import pyarrow as pa
from pyarrow import fs

from anabranch.settings.entries import SCHEME

UNKNOWN = (pa.ArrowException, OSError, ValueError)
"""The errors of `locate` for a location that Arrow does not support."""


def locate(path: str) -> tuple[fs.FileSystem, str, str]:
    """Returns the file system of a path, the path inside it, and the path for Spark.

    Raises an Arrow error (see `UNKNOWN`) for an unsupported location.
    """
    local = local_path(path)
    if local is not None:
        return fs.LocalFileSystem(), local, f"file://{local}"
    files, root = fs.FileSystem.from_uri("s3" + path[3:] if path.startswith("s3a:") else path)
    return files, root, path


def local_path(path: str) -> str | None:
    """Returns the path of a local location; None for any other."""
    found = SCHEME.match(path)
    if found is not None and found.group(1).lower() != "file":
        return None
    return os.path.abspath(path if found is None else "/" + path[found.end() :].lstrip("/"))
