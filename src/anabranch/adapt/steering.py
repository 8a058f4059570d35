"""Steers all queries of a run: their plans, the joins that they share, and the table of partition groups.

`next` returns the plans of a batch for the slots, and `after` takes the reports of the slots. Each query has its own
steering (`adapt.query_steering`); decisions that concern several queries are made here. A query that runs alone is a
set of one, and its records have no name.

Invariant: every decision, change and refusal leaves a record (`adapt.records`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from anabranch.adapt.advisors.sharing import BY_HAND_ONLY, SharingAdvisor, SharingRules, plans_to_share
from anabranch.adapt.balancing import BY_HAND, Balance
from anabranch.adapt.course import Table
from anabranch.adapt.facts import AT_START, BatchFacts, Moment, Since
from anabranch.adapt.keeping_up import KeepingUp, Shedding
from anabranch.adapt.naming import by_hash, by_value
from anabranch.adapt.query_steering import QuerySteering
from anabranch.adapt.records import Author, Record
from anabranch.adapt.rules import NO_RULES, ChangeRules
from anabranch.adapt.schedule import Scheduled
from anabranch.adapt.table import TableSteering
from anabranch.errors import BundleError, MigrationError
from anabranch.plan.mesh import Mesh, Plan
from anabranch.plan.physical import unshared
from anabranch.plan.query_set import ALONE, Plans, QuerySet, partitioning_of
from anabranch.plan.sharing import common_joins, shares
from anabranch.plan.slots import Orders, SlotPlan, SlotPlans, most_frequent
from anabranch.stats.report import SlotReports


class Steering:
    """The steering of all queries of a run."""

    def __init__(
        self,
        queries: QuerySet,
        plans: Plans,
        table: Table,
        rules: Mapping[str, ChangeRules],
        moves: Iterable[Scheduled] = (),
        balance: Balance = BY_HAND,
        held: frozenset[str] = frozenset(),
        sharing: SharingRules = BY_HAND_ONLY,
        *,
        sheds: bool = False,
    ) -> None:
        self._shedding = Shedding() if sheds else None
        self._sharing = SharingAdvisor(queries, sharing)
        self._since_sharing = Since()
        self.is_named = queries.is_named
        self._set = queries
        common_joins(queries, plans.plans)  # refuses what cannot be shared
        spread = table.partitioning
        self.queries = {
            member.name: QuerySteering(
                member.query,
                plans[member.name],
                spread,
                rules.get(member.name, NO_RULES),
                check=partial(self._check_sharing, member.name),
            )
            for member in queries.members
        }
        names = by_value(queries.graph) if balance.show_keys else by_hash
        grids = partial(partitioning_of, queries, spread.slots, held=held)
        self.table = TableSteering(table, moves, balance, grids, names)
        self._watch_limits()

    @property
    def plans(self) -> SlotPlans:
        """The plans of the latest batch."""
        return {name: steering.plans for name, steering in self.queries.items()}

    @property
    def most_plans(self) -> Plans:
        """For each query the plan that most slots have."""
        return Plans({name: most_frequent(plans) for name, plans in self.plans.items()})

    def of_query(self, name: str | None) -> QuerySteering:
        """The steering of the query of that name; a query that runs alone has no name."""
        if name is None and not self.is_named:
            return self.queries[ALONE]
        if name not in self.queries and not self.is_named:
            raise MigrationError(f"there is no query '{name}' to change", hint="a query that runs alone needs no name")
        if name is None or name not in self.queries:
            raise BundleError(
                "no query is named whose plan should change" if name is None else f"no query is named '{name}'",
                hint=f"name one of the queries that run together: {', '.join(self.queries)}",
            )
        return self.queries[name]

    def migrate(self, plans: Mapping[str, Plan], author: Author = "user") -> None:
        """Changes the plans of several queries with the same batch; refuses without any effect."""
        steerings = {name: self.of_query(name) for name in sorted(plans)}
        with ExitStack() as locks:
            for steering in steerings.values():
                locks.enter_context(steering.lock)
            wishes = {name: steering.wish(plans[name], "auto", author=author) for name, steering in steerings.items()}
            common_joins(self._set, {**self.most_plans.plans, **plans})
            for name, steering in steerings.items():
                steering.ask(wishes[name])

    def share(self, join: str, queries: Iterable[str] | None = None) -> None:
        """Lets queries share a join from the next batch on: those that are named, else all that can.

        `join` is the text of a plan over some of their relations, with or without braces.
        """
        named = None if queries is None else [name for name in queries if self.of_query(name)]
        graphs = {member.name: member.query.graph for member in self._set.members}
        self.migrate(plans_to_share(join, named, self.most_plans.plans, graphs))

    def unshare(self, queries: Iterable[str] | None = None) -> None:
        """Lets queries, those that are named or all, compute their joins themselves from the next batch on."""
        now = self.most_plans
        named = self.queries if queries is None else [name for name in queries if self.of_query(name)]
        own = {name: unshared(plan) for name in named if not isinstance(plan := now[name], Mesh) and shares(plan)}
        if not own:
            raise MigrationError("no join is shared", hint="'share' lets queries share one")
        self.migrate(own)

    def _check_sharing(self, query: str, plan: Plan) -> None:
        """Refuses a plan with a shared join that the query cannot share with the others as they are."""
        if shares(plan):
            common_joins(self._set, {**self.most_plans.plans, query: plan})

    def freeze(self, frozen: bool = True) -> None:
        """Keeps all queries from changing their plans by themselves, or lets them again."""
        for steering in self.queries.values():
            steering.freeze(frozen)
        self.table.freeze(frozen)

    def reconfigure(self, wanted: Mapping[str, Any], query: str | None = None) -> None:
        """Takes another policy, objective or limits of a query from the next decision on."""
        self.of_query(query).reconfigure(wanted)
        self._watch_limits()

    def _watch_limits(self) -> None:
        """Holds the run against its limits as they are now."""
        rules = {name: steering.rules for name, steering in self.queries.items()}
        self._keeping_up = KeepingUp(rules, self._sharing.sharing.budget, sheds=self._shedding is not None)

    @property
    def is_changing(self) -> bool:
        """True while some query has a change of plan asked for or under way."""
        return any(steering.is_changing for steering in self.queries.values())

    def close(self) -> None:
        """Ends the searches of all queries; nothing is decided any more that needs one."""
        for steering in self.queries.values():
            steering.controller.searches.close()

    def recall(self, history: Iterable[Mapping[str, Any]]) -> None:
        """Gives each query the decisions on its trees and the changed settings of earlier runs of the checkpoint."""
        records = [*history]
        for name, steering in self.queries.items():
            own = [each for each in records if each.get("query") == (name or None)]
            steering.recall(
                [each for each in own if each.get("kind") == "decision" and "mesh" not in each],
                [each["settings"] for each in own if each.get("kind") == "settings" and "settings" in each],
            )
        self._watch_limits()

    def next(self, batch: int, moment: Moment = AT_START) -> tuple[Orders, list[Record]]:
        """The orders for a batch that begins at a moment, and records of changes that could not be begun."""
        plans: dict[str, tuple[SlotPlan, ...]] = {}
        table, not_moved = self.table.next(batch, moment)
        refused: list[Record] = [*not_moved]
        for name, steering in self.queries.items():
            steering.spread(table)
            plans[name], own = steering.next(batch)
            refused += [replace(record, query=name or None) for record in own]
        share = 1.0 if self._shedding is None else self._shedding.share
        return Orders(plans, table, self.table.counts_cells, share), refused

    def after(self, facts: BatchFacts, reports: SlotReports) -> list[Record]:
        """Takes in a batch that was committed; returns its records. Changes take effect with the next batch."""
        records: list[Record] = []
        is_moving = self.table.is_changing
        for name, steering in self.queries.items():
            own = {slot: report.queries[name] for slot, report in reports.items()}
            decided = steering.after(facts, own, is_moving=is_moving)
            records += [replace(record, query=name or None) for record in decided]
        records += self._decide_sharing(facts)
        records += self._keeping_up.after(facts, reports)
        if self._shedding is not None:
            self._shedding, changed = self._shedding.after(facts.batch, self._keeping_up.trouble)
            records += [] if changed is None else [changed]
        # Plans first: a cheaper plan may be all that a slow slot needs.
        return [*self.table.after(facts, reports, is_busy=self.is_changing), *records]

    @property
    def needs_backlog(self) -> bool:
        """Whether anything here asks how many rows wait in the sources."""
        return self._keeping_up.is_active or any(each.controller.adapts for each in self.queries.values())

    def _decide_sharing(self, facts: BatchFacts) -> list[Record]:
        """Decides on shared joins where that is due; queries that are to change do so with the next batch."""
        if self.is_changing:
            self._since_sharing = Since()
            return []
        self._since_sharing = self._since_sharing.after(facts)
        controllers = {name: steering.controller for name, steering in self.queries.items()}
        decided = self._sharing.decide(facts.batch, self._since_sharing, self.most_plans.plans, controllers)
        if decided is None:
            return []
        self._since_sharing = Since()
        if decided.plans:
            try:
                self.migrate(decided.plans, "loop")
            except (MigrationError, BundleError) as error:
                decided = replace(decided, plans={}, reason=f"{error.message}; otherwise: {decided.reason}")
        return [decided]
