"""Spark's classes in a form that the JVM maps instead of loading: its shared archive of classes.

A driver finds, checks and links thousands of classes before its first micro-batch ends: seconds of every cold start.
HotSpot can write the classes that a run used to a file, and later runs map that file. The archive belongs to one Java,
one pyspark and one folder of jars; HotSpot looks for itself whether it fits, and else loads classes as ever. It lives
in the Python environment and goes with it. `anabranch prepare` makes it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
from pathlib import Path

OFF = "ANABRANCH_NO_ARCHIVE"
"""An environment variable that, set to anything, makes every start a cold one."""


def java_command() -> str | None:
    """The Java that Spark would start; None when neither JAVA_HOME nor PATH leads to one."""
    home = os.environ.get("JAVA_HOME")
    return os.path.join(home, "bin", "java") if home else shutil.which("java")


def archive_file() -> Path:
    """Where the archive is for the Java and the pyspark that a session would start now."""
    import pyspark  # here, so that the session reports a missing one

    of = "\n".join((os.path.realpath(java_command() or "java"), pyspark.__version__, os.path.dirname(pyspark.__file__)))
    return Path(sys.prefix) / "share" / "anabranch" / f"spark-{hashlib.sha256(of.encode()).hexdigest()[:12]}.jsa"


def mapping_options() -> tuple[str, ...]:
    """The options by which the driver's JVM maps the archive; none where there is no archive."""
    file = archive_file()
    if OFF in os.environ or not file.is_file() or " " in str(file) or not is_trusted(file):
        return ()
    return (f"-XX:SharedArchiveFile={file}", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")


def is_trusted(file: Path) -> bool:
    """True if nobody can have written the archive who could not change the Python environment or be this user.

    A JVM runs what it maps.
    """
    found = file.stat()
    trusted = {0, os.geteuid(), os.stat(sys.prefix).st_uid}
    return found.st_uid in trusted and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def writing_options(file: Path) -> tuple[str, ...]:
    """The options by which the driver's JVM writes the classes that it used to a file, when it ends."""
    return (f"-XX:ArchiveClassesAtExit={file}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")
