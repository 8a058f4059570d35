"""Settings of the Spark session, `spark.anabranch.*`: defaults of the runs that start in it.

Invariant: a setting of the writer or the spec takes precedence. Limit: only settings of a whole run can be given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from anabranch.adapt.balancing import read_slots
from anabranch.api.settings import DEFAULTS, RunSettings
from anabranch.errors import SpecError
from anabranch.plan.execution import execution_model
from anabranch.run.evolving import Evolve
from anabranch.settings.entries import argument
from anabranch.spark.internals import patches

PREFIX = "spark.anabranch."


def _slots(name: str, value: str) -> Any:
    return read_slots(argument(name, int(value) if value.isdigit() else value))


def _execution(name: str, value: str) -> Any:
    return execution_model(value)


def _timeout(name: str, value: str) -> Any:
    argument(name, value).timeout()
    return value


def _evolve(name: str, value: str) -> Any:
    return Evolve(argument(name, value).choice(tuple(Evolve)))


_READ: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "spark.anabranch.slots": ("slots", _slots),
    "spark.anabranch.execution": ("execution", _execution),
    "spark.anabranch.idleTimeout": ("idle_timeout", _timeout),
    "spark.anabranch.evolve": ("evolve", _evolve),
}
"""The field of `RunSettings` that each setting sets, and how its text is read."""


def with_session_settings(settings: RunSettings, conf: Mapping[str, str]) -> RunSettings:
    """Returns the settings of a run with those of its session where the run itself has none.

    Raises
    ------
    SpecError
        When the session has an unknown setting that begins with `spark.anabranch.`, or one with a wrong value.
    """
    for name, value in sorted(conf.items()):
        if not name.startswith(PREFIX) or name == patches.SETTING:
            continue
        known = _READ.get(name)
        if known is None:
            names = [*_READ, patches.SETTING]
            close = get_close_matches(name, names, n=1)
            raise SpecError(
                f"unknown setting '{name}' of the Spark session",
                detail=f"the settings are {', '.join(names)}",
                hint=f"did you mean '{close[0]}'?" if close else "remove it",
            )
        field, read = known
        if getattr(settings, field) == getattr(DEFAULTS, field):
            settings = replace(settings, **{field: read(name, value)})
    return settings
