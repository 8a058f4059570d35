"""The class data sharing archive: Spark's classes in a form that the JVM maps instead of loading.

A driver finds, verifies and links thousands of classes before its first micro-batch ends, which takes seconds of every
cold start. HotSpot can write the classes that a run used to a file, and later runs map that file. `anabranch prepare`
creates the archive in the Python environment.

Invariant: the archive fits one Java, one pyspark and one folder of jars; HotSpot checks this, and otherwise loads
classes normally.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
from pathlib import Path

OFF = "ANABRANCH_NO_ARCHIVE"
"""An environment variable that disables the archive when set to any value."""


def java_command() -> str | None:
    """Returns the Java that Spark would start; None if neither JAVA_HOME nor PATH has one."""
    home = os.environ.get("JAVA_HOME")
    return os.path.join(home, "bin", "java") if home else shutil.which("java")


def archive_file() -> Path:
    """Returns the path of the archive for the Java and the pyspark that a session would start now."""
    import pyspark  # here, so that the session reports a missing pyspark

    of = "\n".join((os.path.realpath(java_command() or "java"), pyspark.__version__, os.path.dirname(pyspark.__file__)))
    return Path(sys.prefix) / "share" / "anabranch" / f"spark-{hashlib.sha256(of.encode()).hexdigest()[:12]}.jsa"


def mapping_options() -> tuple[str, ...]:
    """Returns the JVM options that map the archive; empty if there is no archive."""
    file = archive_file()
    if OFF in os.environ or not file.is_file() or " " in str(file) or not is_trusted(file):
        return ()
    return (f"-XX:SharedArchiveFile={file}", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")


def is_trusted(file: Path) -> bool:
    """Returns True if only root, this user or the owner of the Python environment can have written the archive.

    A JVM executes what it maps.
    """
    found = file.stat()
    trusted = {0, os.geteuid(), os.stat(sys.prefix).st_uid}
    return found.st_uid in trusted and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def writing_options(file: Path) -> tuple[str, ...]:
    """Returns the JVM options that write the used classes to a file at exit."""
    return (f"-XX:ArchiveClassesAtExit={file}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")
