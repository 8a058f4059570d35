"""Computes the floors of relations after a batch from the event times of its rows.

The driver and every slot apply these functions to equal counts, so they get equal floors. Invariant: this module reads
and writes no files. Limit: the event times of all readers must be known.
"""

from __future__ import annotations

from dataclasses import replace

from anabranch.lang.window import BEFORE_ALL
from anabranch.plan.join_graph import Relation
from anabranch.plan.query_set import QuerySet
from anabranch.run.clock import ClockRule, Clocks
from anabranch.run.slot import SlotTask
from anabranch.stats.intake import Intake


def informed(task: SlotTask, intake: Intake) -> SlotTask:
    """Returns a task with the floors after the batch, if its slots need them while they step."""
    if task.rule is None:
        return task
    return replace(task, floors_after=relation_floors(task.queries, clocks_after(task.queries, task.rule, intake)))


def clocks_after(queries: QuerySet, rule: ClockRule, intake: Intake) -> Clocks:
    """Returns the clocks after a batch, from everything that its readers read."""
    return rule.after(newest_by_stream(queries, intake), last_ticks(queries, intake))


def relation_floors(queries: QuerySet, clocks: Clocks) -> dict[str, int]:
    """Returns the floor of each relation: that of its stream or, for results, that of future results of their query."""
    floors: dict[str, int] = {}
    passed: dict[str, int] = {}
    by_stream = {name: clock.floor for name, clock in clocks.streams.items()}
    for member in sorted(queries.members, key=lambda member: queries.levels[member.name]):
        for relation in member.query.whole.streamed:
            # Every future result contains a future row: none is older than the lowest floor of its query.
            if relation.is_result:
                floors[relation.name] = max(
                    min(passed[name] for name in relation.producers) - relation.behind, BEFORE_ALL
                )
            else:
                floors[relation.name] = by_stream[relation.stream]
        passed[member.name] = min(floors[relation.name] for relation in member.query.whole.streamed)
    return floors


def newest_by_stream(queries: QuerySet, intake: Intake) -> dict[str, int | None]:
    """Returns the largest event time of each stream that had any."""
    newest: dict[str, int | None] = {}
    for name, time in intake.newest.items():
        stream = queries.graph.relation(name).stream
        known = newest.get(stream)
        newest[stream] = time if known is None else max(time, known)
    return newest


def last_ticks(queries: QuerySet, intake: Intake) -> dict[str, int | None]:
    """Returns the last tick of each derived stream; None if the batch had none."""
    return {relation.stream: intake.ticks.get(name) for name, relation in derived_relations(queries).items()}


def derived_relations(queries: QuerySet) -> dict[str, Relation]:
    """Returns the derived relations, by name."""
    return {relation.name: relation for relation in queries.graph.relations if relation.is_derived}
