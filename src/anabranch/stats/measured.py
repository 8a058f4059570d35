"""Measures statistics of the streams from the counts of a running query.

The engine keeps these counts in any case. Invariant: a number without counts is unknown, never zero. Limit: rates and
selectivities are those of the measured batches; the caller decides whether they apply to later batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from types import MappingProxyType
from typing import Any, TypeAlias

from anabranch.errors import PlanError
from anabranch.lang.window import FOREVER
from anabranch.plan.join_graph import JoinGraph, KeyClass
from anabranch.plan.pairwise import lifetimes
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.physical import JoinNode, PhysicalPlan, nodes, pre_groups, probe_order, shape
from anabranch.plan.query import Query
from anabranch.plan.selections import checked_by_probe, deferred_thetas
from anabranch.plan.text import parse
from anabranch.stats.groups import groups_behind
from anabranch.stats.step import StepStatistics, merge
from anabranch.stats.view import NOTHING_KNOWN, FixedStatistics

Alive: TypeAlias = Callable[[str, frozenset[str], frozenset[str], bool], float | None]
"""Estimates how many rows of a state a probing row can meet; see `_alive`."""
TIMED_ROWS = 50_000
"""The minimum number of checked rows for the measured seconds of a predicate to be used."""


def measured(
    query: Query,
    plan: PhysicalPlan,
    steps: Sequence[StepStatistics],
    seconds: float,
    *,
    partitioning: Partitioning | None = None,
    before: Mapping[str, float] = MappingProxyType({}),
) -> FixedStatistics:
    """Returns the rates and selectivities of some batches of a running query.

    Parameters
    ----------
    query, plan
        The query, and the single plan that all of these batches ran with; start a new list after a plan change.
    steps
        One `StepStatistics` per batch, its slots merged, as in progress under `adaptive.statistics`.
    seconds
        Seconds of event time that the batches cover. Windows are in event time, so rates must be too, regardless of how
        fast the rows were processed.
    partitioning
        How the rows were spread over slots. Only needed if a row goes to several slots, to count it once.
    before
        The selectivities of earlier batches.

    A lookup that found m rows for p probing rows has the selectivity m / (p x live rows of the target). The live rows
    are those that arrive during the windows, once these are full (before, in proportion to the size of the state); more
    if the target receives a batch's rows before the probing input, fewer if it receives them after (`met_for`). A
    lookup that was never made has an unknown selectivity, not zero. A lookup without a match counts as half a match,
    because a few rows do not prove that no rows ever match; if that is more than the selectivity before, too few rows
    probed to know it, and it stays. So does a stream without a row count as half a row: at a rate of zero, every plan
    would cost nothing, even a product. The selectivity of a band that is looked up by bucket is
    the fraction of all pairs that passed it with the other predicates of its pair, which then count as passed. Rates
    are measured after the filters, and the filters count as passed, so in a `Layered` view this view must precede those
    it replaces.
    """
    graph, batches = query.graph, len(steps)
    step = merge(steps)

    def copies(relations: Iterable[str]) -> float:
        return partitioning.copies(relations) if partitioning is not None else 1.0

    # Reports of older runs have no checks. There, the lookup counts give the selectivity of a predicate that was
    # checked alone.
    checks = {check.predicate: check for check in step.checks if check.rows}
    checked: dict[str, list[tuple[float, float]]] = {text: [(each.passed, each.rows)] for text, each in checks.items()}
    found = _looked_up_shares(query, plan, step, _alive(step, batches, seconds, query), copies, checked)
    return replace(
        arrivals(graph, steps, seconds, partitioning),
        selectivities={name: _selectivity(parts, before.get(name, 1.0)) for name, parts in found.items()},
        groups=_groups(query, plan, step, batches, seconds),
        predicates={text: each.seconds / each.rows for text, each in checks.items() if each.rows >= TIMED_ROWS},
    )


def _looked_up_shares(
    query: Query,
    plan: PhysicalPlan,
    step: StepStatistics,
    alive: Alive,
    copies: Callable[[Iterable[str]], float],
    checked: Mapping[str, list[tuple[float, float]]],
) -> dict[str, list[tuple[float, float]]]:
    """Adds the shares of pairs that agree in keys or bands, from the lookups; `checked` are those from the checks."""
    graph, found = query.graph, dict(checked)
    banded: dict[str, list[tuple[float, float]]] = {}
    implied: set[str] = set()
    joins, deferred = {node.shape: node for node in nodes(plan)}, deferred_thetas(plan)
    for probe in step.probes:
        bound, target, is_ahead = _looked_up(joins[probe.join], probe.origin, probe.target, graph)
        living = alive(probe.target, target, bound, is_ahead)
        if living is None:
            continue
        # A match is counted in every slot that has both sides; so are the rows of each side.
        copied = copies(bound | target) / (copies(bound) * copies(target))
        chances = probe.probes * living * copied
        pairs = {_pair(key, bound, target, graph) for key in graph.keys_between(bound, target)}
        if len(pairs) == 1 and chances > 0:
            found.setdefault(pairs.pop(), []).append((probe.matches, chances))
        thetas = checked_by_probe(joins[probe.join], bound, target, graph, deferred)
        if not pairs and chances > 0 and (band := _only_band(thetas, graph)) is not None:
            # The bucket lookup has rejected most pairs before the checks counted any.
            banded.setdefault(str(graph.thetas[band]), []).append((probe.kept, chances))
            implied |= {str(graph.thetas[at]) for at in thetas if at != band}
            continue
        if len(thetas) == 1 and probe.matches > 0 and str(graph.thetas[thetas[0]]) not in checked:
            found.setdefault(str(graph.thetas[thetas[0]]), []).append((probe.kept, probe.matches))
    return found | {text: [(1.0, 1.0)] for text in implied} | banded


def arrivals(
    graph: JoinGraph, steps: Sequence[StepStatistics], seconds: float, partitioning: Partitioning | None = None
) -> FixedStatistics:
    """Returns the rates of streams and the rows of tables, both after the filters; they depend on no plan."""
    step = merge(steps)

    def copies(name: str) -> float:
        return partitioning.copies([name]) if partitioning is not None else 1.0

    tables = {relation.name for relation in graph.relations if relation.is_table}
    counts = {name: count or 0.5 for name, count in step.rows_in.items() if name not in tables}
    return FixedStatistics(
        rates={name: count / seconds / copies(name) for name, count in counts.items()},
        rows={each.state: each.rows / len(steps) / copies(each.state) for each in step.states if each.state in tables},
        filters={relation.name: 1.0 for relation in graph.relations if relation.filter is not None},
        provenance="measured",
    )


def _selectivity(parts: Iterable[tuple[float, float]], before: float) -> float:
    """Returns hits over chances; without a hit, at most half a hit and at most the selectivity before."""
    hits, chances = map(sum, zip(*parts, strict=True))
    return min(1.0, hits / chances) if hits else min(before, 0.5 / chances)


def _groups(query: Query, plan: PhysicalPlan, step: StepStatistics, batches: int, seconds: float) -> dict[str, float]:
    """Estimates the number of groups of each merged input, from the rows left after merging the rows of a batch."""
    states, joins = {state.state: state for state in step.states}, {node.shape: node for node in nodes(plan)}
    spans = max(1.0, seconds / batches / query.seconds_between_boundaries) if query.grouping is not None else 1.0
    found = {}
    for merged in pre_groups(plan):
        below = merged.input
        if isinstance(below, JoinNode):
            rows = sum(
                probe.kept
                for probe in step.probes
                if probe.join == below.shape and _is_last(joins[probe.join], probe.origin, probe.target, query.graph)
            )
        else:
            rows = sum(step.rows_in.get(name, 0) for name in merged.relations)
        if rows > 1 and merged.shape in states:
            # Rows of a batch are merged with those that count from the same boundary.
            each = batches * spans
            left = states[merged.shape].inserted
            found[" ".join(sorted(merged.relations))] = groups_behind(max(2.0, rows / each), left / each)
    return found


def intermediate_rows(step: StepStatistics, plan: PhysicalPlan, graph: JoinGraph) -> int:
    """Returns the number of combinations that are not results: kept by an inner join, or passed to a next probe."""
    joins = {node.shape: node for node in nodes(plan)}
    return sum(
        probe.kept
        for probe in step.probes
        if joins[probe.join] is not plan or not _is_last(joins[probe.join], probe.origin, probe.target, graph)
    )


def _is_last(node: JoinNode, origin: str, target: str, graph: JoinGraph) -> bool:
    shapes = [shape(child) for child in node.inputs]
    return probe_order(node, shapes.index(origin), graph)[-1] == shapes.index(target)


def from_progress(query: Query, progress: Sequence[Mapping[str, Any]]) -> FixedStatistics:
    """Returns the statistics of the streams from a query's progress; `FixedStatistics.to_mapping` saves them.

    Uses only the latest batches with the same plan and the same table. Returns no statistics for a query without
    progress.
    """
    recent = [each["adaptive"] for each in progress if each.get("adaptive")]
    latest = list(
        takewhile(
            lambda each: (
                each["plan"] == recent[-1]["plan"]
                and each["table"] == recent[-1]["table"]
                and each["watermark"] is not None
            ),
            reversed(recent),
        )
    )[::-1]
    if len(latest) < 2 or latest[-1]["watermark"] <= latest[0]["watermark"]:
        return NOTHING_KNOWN
    try:
        plan = parse(latest[-1]["plan"])
    except PlanError:
        # The rows of a mesh take several routes, so no single plan determines which rows a probe could meet.
        return NOTHING_KNOWN
    # The first batch only marks the start of the interval.
    steps = [StepStatistics.from_json(each["statistics"]) for each in latest[1:]]
    seconds = (latest[-1]["watermark"] - latest[0]["watermark"]) / 1e6
    last = latest[-1]
    partitioning = Partitioning.from_json({"dimensions": last["grid"], "slots": last["slots"], "table": last["table"]})
    return measured(query, plan, steps, seconds, partitioning=partitioning)


def _alive(step: StepStatistics, batches: int, seconds: float, query: Query) -> Alive:
    """Returns a function that estimates how many rows of a state a probing row can meet.

    Its arguments are the state, its relations, those that probe, and whether the state receives a batch's rows before
    the probing input does.
    """
    ranges: dict[str, int | None] = dict.fromkeys(query.graph.names)
    ranges |= {name: span for name, span in lifetimes([query]).items() if span < FOREVER}
    states = {state.state: state for state in step.states}

    def alive(name: str, relations: frozenset[str], probing: frozenset[str], is_ahead: bool) -> float | None:
        if name not in states:
            return None
        held, rate = states[name].rows / batches, states[name].inserted / seconds
        bounded = [span / 1e6 for relation in relations if (span := ranges[relation]) is not None]
        if not bounded:
            return held
        if not all(bounded):
            # [NOW]: matches within one instant depend on the clock resolution of the source, not on the window.
            return None
        full = rate * min(bounded)
        share = min(1.0, held / full) if full else 1.0
        reach = min((span / 1e6 for each in probing if (span := ranges[each]) is not None), default=math.inf)
        return rate * met_for(1 / sum(1 / span for span in bounded), reach, seconds / batches, is_ahead) * share

    return alive


def met_for(span: float, reach: float, batch: float, is_ahead: bool) -> float:
    """Returns the seconds of a target's rows that a row of a batch can meet on average; they live for `span` seconds.

    If the target goes first, a row also meets younger rows of its own batch, as far as its own windows `reach`. If the
    target goes after, it meets only rows of earlier batches. For windows longer than a batch, the difference is half a
    batch.

    >>> met_for(10.0, 10.0, 2.0, True), met_for(10.0, 10.0, 2.0, False)
    (11.0, 9.0)
    >>> met_for(1.0, 1.0, 10.0, True), met_for(1.0, 1.0, 10.0, False)
    (1.95, 0.05)
    """
    if is_ahead:
        return span + (batch / 2 if reach >= batch else reach - reach * reach / (2 * batch))
    return span - batch / 2 if span >= batch else span * span / (2 * batch)


def _only_band(thetas: Sequence[int], graph: JoinGraph) -> int | None:
    """Returns the band of a lookup without a key; None if the lookup also checks predicates of other relations."""
    band = next((at for at in thetas if graph.thetas[at].band is not None), None)
    if band is None or any(graph.thetas[at].relations != graph.thetas[band].relations for at in thetas):
        return None
    return band


def _pair(key: KeyClass, bound: frozenset[str], target: frozenset[str], graph: JoinGraph) -> str:
    one = next(name for name in graph.names if name in key.relations & bound)
    other = next(name for name in graph.names if name in key.relations & target)
    return " ".join(sorted((one, other)))


def _looked_up(
    node: JoinNode, origin: str, target: str, graph: JoinGraph
) -> tuple[frozenset[str], frozenset[str], bool]:
    """Returns the relations bound before a lookup of a join, those of its target, and whether the target goes first."""
    shapes = [shape(child) for child in node.inputs]
    start, end = shapes.index(origin), shapes.index(target)
    order = probe_order(node, start, graph)
    before = (start, *order[: order.index(end)])
    bound = frozenset(name for position in before for name in node.inputs[position].relations)
    return bound, frozenset(node.inputs[end].relations), end < start
