"""Queries that run together as a host sees them: who steers their plans, and whose result is whose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from anabranch.adapt.loop import Means
from anabranch.adapt.settings import Settings
from anabranch.errors import BundleError
from anabranch.host.meshing import Staging
from anabranch.host.slot import SlotPlan
from anabranch.host.steering import Record, Steering, Switch
from anabranch.plan.bundle import Bundle, BundlePlan
from anabranch.plan.mesh import Plan, parse_plan
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.query import Query


@dataclass(frozen=True)
class Course:
    """What may change the plan of a query while it runs."""

    adapt: Settings | None = None
    means: Means | None = None
    switches: tuple[Switch, ...] = ()
    staging: Staging | None = None
    """When slots look for a mesh; never when None."""
    goes_on: bool = False
    """Whether a restart begins with the plan that the last batch had, and not with the one it is given."""


class BundleSteering:
    """The steering of each query of a bundle; what they tell bears the query's name."""

    def __init__(
        self, bundle: Bundle, plan: BundlePlan, partitioning: Partitioning, courses: Mapping[str, Course]
    ) -> None:
        self.each = {
            member.name: _steering(member.query, plan.plans[member.name], partitioning, courses[member.name])
            for member in bundle.members
        }

    @property
    def plans(self) -> tuple[SlotPlan, ...]:
        """The plans of the latest batch, by slot, those of one query after those of another."""
        return tuple(plan for steering in self.each.values() for plan in steering.plans)

    @property
    def plan(self) -> BundlePlan:
        return BundlePlan({name: steering.plan for name, steering in self.each.items()})

    def of_query(self, name: str | None) -> Steering:
        """The steering of the query of that name."""
        if name is None or name not in self.each:
            raise BundleError(
                "no query is named whose plan should change" if name is None else f"no query is named '{name}'",
                hint=f"queries that run together are told apart by name: {', '.join(self.each)}",
            )
        return self.each[name]

    def freeze(self, frozen: bool = True) -> None:
        """Keeps all queries from changing their plans by themselves, or lets them again."""
        for steering in self.each.values():
            steering.freeze(frozen)

    def memory(self) -> dict[str, object]:
        """What the loops of each query have learnt."""
        return {name: steering.memory() for name, steering in self.each.items()}

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Gives each query what it has learnt in an earlier run."""
        for name, steering in self.each.items():
            steering.recall(memory.get(name, {}))

    def next(self, batch: int) -> tuple[tuple[SlotPlan, ...], list[Record]]:
        """The plans for a batch, and records of what could not be done."""
        plans: list[SlotPlan] = []
        refused: list[Record] = []
        for name, steering in self.each.items():
            own, told = steering.next(batch)
            plans += own
            refused += [{**record, "query": name} for record in told]
        return tuple(plans), refused

    def after(
        self,
        batch: int,
        reports: Mapping[int, Mapping[str, Any]],
        seconds: float | None,
        waiting: int | None,
        behind: float | None = None,
    ) -> list[Record]:
        """What is to be told of a batch that was committed."""
        records: list[Record] = []
        for name, steering in self.each.items():
            own = {slot: report["queries"][name] for slot, report in reports.items()}
            records += [{**record, "query": name} for record in steering.after(batch, own, seconds, waiting, behind)]
        return records


def make_steering(
    query: Query, plan: Plan | BundlePlan, partitioning: Partitioning, course: Course | Mapping[str, Course]
) -> Steering | BundleSteering:
    """Who steers a query, or the queries of a bundle: each by the course of its name, or all by the one given."""
    if not isinstance(query, Bundle):
        assert not isinstance(plan, BundlePlan)
        assert isinstance(course, Course)
        return _steering(query, plan, partitioning, course)
    assert isinstance(plan, BundlePlan)
    names = [member.name for member in query.members]
    return BundleSteering(
        query, plan, partitioning, dict.fromkeys(names, course) if isinstance(course, Course) else course
    )


def _steering(query: Query, plan: Plan, partitioning: Partitioning, course: Course) -> Steering:
    adapt, means, switches, staging = course.adapt, course.means, course.switches, course.staging
    return Steering(query, plan, partitioning, adapt=adapt, means=means, switches=switches, staging=staging)


def resumed(
    plan: Plan | BundlePlan, course: Course | Mapping[str, Course], report: Mapping[str, Any]
) -> Plan | BundlePlan:
    """The plan to begin with after a batch that left the report: those that go on are as they were in it."""
    if not isinstance(plan, BundlePlan):
        assert isinstance(course, Course)
        return parse_plan(report["plan"]) if course.goes_on and "plan" in report else plan
    assert not isinstance(course, Course)
    left = {name: parse_plan(text) for name, text in report.get("plans", {}).items() if course[name].goes_on}
    return BundlePlan({**plan.plans, **left})


def by_query(results: pa.Table) -> dict[str, pa.Table]:
    """The results of a bundle, which stand in a column of their query each, as a table for each query."""
    return {name: _own(results.column(name)) for name in results.column_names}


def _own(column: pa.ChunkedArray) -> pa.Table:
    kept = column.filter(pc.is_valid(column)).combine_chunks()
    fields = list(column.type)
    return pa.Table.from_arrays(kept.flatten(), schema=pa.schema(fields))
