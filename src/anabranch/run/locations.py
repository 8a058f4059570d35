"""Locations of files: from the text of a user to Arrow's file system and to Spark's path.

Law: Arrow and Spark open the same folder. A path without a scheme, or with `file:` before it, is local to the driver
and the executors. It is taken literally, because Hadoop does not decode `%20` and an Arrow URI would. Any other
location is a URI that both know.
"""

from __future__ import annotations

import os

import pyarrow as pa
from pyarrow import fs

from anabranch.settings.entries import SCHEME

UNKNOWN = (pa.ArrowException, OSError, ValueError)
"""The errors of `locate` for a location that Arrow does not know."""


def locate(path: str) -> tuple[fs.FileSystem, str, str]:
    """The file system of a path, the path inside it, and the path for Spark.

    Raises an error of Arrow's (see `UNKNOWN`) where Arrow does not know the location.
    """
    local = local_path(path)
    if local is not None:
        return fs.LocalFileSystem(), local, f"file://{local}"
    files, root = fs.FileSystem.from_uri("s3" + path[3:] if path.startswith("s3a:") else path)
    return files, root, path


def local_path(path: str) -> str | None:
    """The path of a local location; None of any other."""
    found = SCHEME.match(path)
    if found is not None and found.group(1).lower() != "file":
        return None
    return os.path.abspath(path if found is None else "/" + path[found.end() :].lstrip("/"))
