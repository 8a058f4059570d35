"""`anabranch doctor`: checks this machine's requirements and names a remedy for each that is missing."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from anabranch.errors import HostError, StatisticsError, installation
from anabranch.lang.sizes import size_text
from anabranch.planning.calibration import calibration_file, load_host, load_units
from anabranch.spark.archive import archive_file, is_trusted

SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Finding:
    """One checked requirement; it has a remedy if it prevents queries from running."""

    name: str
    found: str
    remedy: str = ""

    @property
    def is_good(self) -> bool:
        return not self.remedy


def examine() -> list[Finding]:
    """Checks Python, Spark, Java, the class archive, shared memory, processors and the calibration."""
    processors = Finding("processors", f"{os.cpu_count()}")
    return [_python(), _spark(), _java(), _archive(), _shared_memory(), processors, _calibration()]


def _python() -> Finding:
    return Finding("python", f"{platform.python_version()} ({sys.executable})")


def _spark() -> Finding:
    try:
        return Finding("spark", f"pyspark {version('pyspark')}")
    except PackageNotFoundError:
        return Finding("spark", "pyspark is not installed", installation("spark"))


def _java() -> Finding:
    try:
        # Imported here because the module needs pyspark, which is an extra.
        from anabranch.spark.session import require_java

        return Finding("java", f"version {require_java()}")
    except HostError as error:
        return Finding("java", "; ".join(filter(None, (error.message, error.detail))), error.hint)


def _archive() -> Finding:
    try:
        size = archive_file().stat().st_size
        if not is_trusted(archive_file()):
            return Finding("class archive", "not used: another user can write it; 'anabranch prepare' replaces it")
    except (ModuleNotFoundError, OSError):
        return Finding("class archive", "none; 'anabranch prepare' creates one, and Spark then starts faster")
    return Finding("class archive", size_text(size))


def _shared_memory() -> Finding:
    if not SHARED_MEMORY.is_dir():
        return Finding("shared memory", "none; hot state will be in the temporary folder, which is slower")
    usage = shutil.disk_usage(SHARED_MEMORY)
    return Finding("shared memory", f"{size_text(usage.free)} free of {size_text(usage.total)} in {SHARED_MEMORY}")


def _calibration() -> Finding:
    file = calibration_file()
    try:
        known, host = load_units(file), load_host(file)
    except StatisticsError as error:
        return Finding("calibration", error.message, error.hint)
    found = f"in {file}" if known else "none; 'anabranch calibrate' measures this machine's unit costs"
    if known and host is None:
        found = f"{found}; of the engine alone, 'anabranch calibrate' measures Spark too"
    return Finding("calibration", found)
