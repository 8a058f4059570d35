"""Changes the settings of a running query: its policy, its objective and its limits.

A change is a mapping like the entries of a spec: `{"adapt": {"policy": "periodic"}}`, `{"objective": "memory"}`,
`{"limits": {"cpu": 0.5}}`. It is recorded in the history in the given form, and a restart reads it from there. Limit:
only queries that adapt; the strategy and the scope of adaptation are fixed at the start.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from anabranch.adapt.rules import ChangeRules
from anabranch.adapt.settings import Settings
from anabranch.errors import MigrationError
from anabranch.optimize.hints import Objective
from anabranch.settings.entries import Entry, optional


def reconfigured(rules: ChangeRules, wanted: Mapping[str, Any]) -> ChangeRules:
    """Returns the rules with other settings; a SpecError names a wrong entry."""
    if rules.adapt is None:
        raise MigrationError(
            "the query does not adapt, so its settings have no effect", hint="start it with adapt: true"
        )
    entries = Entry("settings", dict(wanted)).mapping("adapt objective limits")
    criteria, adapt = rules.criteria, rules.adapt
    if "adapt" in entries:
        adapt = replace(adapt, policy=Settings.read(entries["adapt"]).policy)
    if "objective" in entries:
        criteria = replace(criteria, objective=Objective.parse(entries["objective"].text()))
    if "limits" in entries:
        limits, budget = entries["limits"].mapping("cpu memory"), criteria.budget
        cpu = optional(limits, "cpu", lambda each: each.number(high=math.inf, above=0.0, hint="write 0.8"), budget.cpu)
        memory = optional(
            limits, "memory", lambda each: each.size(high=math.inf, above=0.0, hint="write 500 MB"), budget.memory
        )
        criteria = replace(criteria, budget=replace(budget, cpu=cpu, memory=memory))
    return replace(rules, adapt=adapt, criteria=criteria)
