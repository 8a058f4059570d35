"""Places of files as users write them, as Arrow opens them and as Spark is to be told them.

Law: both are led to the same folder. A path without a scheme, or with `file:` before it, is a local one of driver and
executors; it is taken as it is written, because Hadoop decodes no `%20` and a URI of Arrow's would. Any other place is
a URI that both know.
"""

from __future__ import annotations

import os

import pyarrow as pa
from pyarrow import fs

from anabranch.entries import SCHEME

UNKNOWN = (pa.ArrowException, OSError, ValueError)
"""What `locate` raises of a place that Arrow does not know."""


def locate(path: str) -> tuple[fs.FileSystem, str, str]:
    """The file system of a path, the path in it, and the path as Spark is to be told it.

    An error of Arrow's (see `UNKNOWN`) says that it knows no such place.
    """
    found = SCHEME.match(path)
    if found is None or found.group(1).lower() == "file":
        local = os.path.abspath(path if found is None else "/" + path[found.end() :].lstrip("/"))
        return fs.LocalFileSystem(), local, f"file://{local}"
    files, root = fs.FileSystem.from_uri("s3" + path[3:] if path.startswith("s3a:") else path)
    return files, root, path
