"""The calibration file: measured unit costs in the user's cache folder, one file for each machine."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict
from pathlib import Path

from anabranch.cost.units import ENGINE, UnitCosts
from anabranch.errors import StatisticsError
from anabranch.stats.view import NOTHING_KNOWN, FixedStatistics


def calibration_file() -> Path:
    """The file that keeps the measured costs of this machine."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "anabranch" / f"unit-costs-{platform.node() or 'machine'}.json"


def calibrated() -> FixedStatistics:
    """The measured costs of this machine as statistics; nothing known if there are none."""
    units = load_units(calibration_file())
    return NOTHING_KNOWN if units is None else FixedStatistics(costs=units.by_name(), provenance="calibrated")


def save_units(units: UnitCosts, path: Path) -> None:
    """Writes measured costs for later runs on this machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(units), indent=2) + "\n", encoding="utf-8")


def load_units(path: Path) -> UnitCosts | None:
    """Reads costs that were measured earlier; None if there are none."""
    if not path.exists():
        return None
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        # Calibrations of other releases may lack a cost or have one more. Grouping is not measured.
        known = {name: value for name, value in kept.items() if name in ENGINE.by_name()}
        return UnitCosts.from_names({**known, "group": ENGINE.group})
    except (ValueError, TypeError, AttributeError, StatisticsError) as error:
        raise StatisticsError(
            f"the calibration in '{path.name}' cannot be read",
            detail=str(error),
            hint="run 'anabranch calibrate' again",
        ) from error
