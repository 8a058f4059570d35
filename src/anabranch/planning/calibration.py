"""The calibration file: measured unit costs in the user's cache folder, one file per machine.

The costs of Spark are in the entry `spark`, those of the engine at the top level. Limit: a file of another release may
lack entries or have unknown ones, which are ignored.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from anabranch.cost.host import HostCosts
from anabranch.cost.units import ENGINE, UnitCosts
from anabranch.errors import StatisticsError
from anabranch.stats.view import NOTHING_KNOWN, FixedStatistics

Costs = TypeVar("Costs")


def calibration_file() -> Path:
    """Returns the path of this machine's calibration file."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "anabranch" / f"unit-costs-{platform.node() or 'machine'}.json"


def calibrated() -> FixedStatistics:
    """Returns the measured costs of this machine as statistics; empty if there are none."""
    units = load_units(calibration_file())
    return NOTHING_KNOWN if units is None else FixedStatistics(costs=units.by_name(), provenance="calibrated")


def calibrated_host() -> HostCosts | None:
    """Returns the measured costs of Spark on this machine, or None."""
    return load_host(calibration_file())


def save_units(units: UnitCosts, path: Path, host: HostCosts | None = None) -> None:
    """Writes measured costs for later runs on this machine; keeps existing entries that are not given."""
    host = load_host(path) if host is None else host
    path.parent.mkdir(parents=True, exist_ok=True)
    kept: dict[str, Any] = asdict(units)
    if host is not None:
        kept["spark"] = asdict(host)
    path.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


def load_units(path: Path) -> UnitCosts | None:
    """Reads the stored unit costs, or returns None."""

    def units(kept: dict[str, Any]) -> UnitCosts:
        # Calibrations of other releases may lack a cost or have an additional one. Grouping is not measured.
        known = {name: value for name, value in kept.items() if name in ENGINE.by_name()}
        return UnitCosts.from_names({**known, "group": ENGINE.group})

    return _read(path, units)


def load_host(path: Path) -> HostCosts | None:
    """Reads the stored costs of Spark, or returns None."""
    return _read(path, lambda kept: HostCosts.from_names(kept["spark"]) if "spark" in kept else None)


def _read(path: Path, understand: Callable[[dict[str, Any]], Costs]) -> Costs | None:
    if not path.exists():
        return None
    try:
        return understand(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, AttributeError, StatisticsError) as error:
        raise StatisticsError(
            f"the calibration in '{path.name}' cannot be read",
            detail=str(error),
            hint="run 'anabranch calibrate' again",
        ) from error
