"""Estimates of one query: rates, windows, sizes and selectivities, the input of the cost model.

A relation has a rate (rows per second that pass its filter) and a window in seconds, so its state holds rate x window
rows. If bands over event times let rows expire earlier, the window is the time that rows are kept. The selectivity of a
key class is stored as a number of distinct values per member: two sides agree with probability 1 / max of their
smallest counts (the usual containment assumption). So the estimate of a joined set does not depend on the order of
joins. Thetas are assumed independent of everything else.

Invariant: every unknown number gets an assumed one. Limit: sets of relations are bit masks in the order of the query's
relations, so a query has at most 62 relations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise
from typing import TypeAlias

from anabranch.cost.units import ENGINE, unit_costs
from anabranch.errors import PlanError
from anabranch.lang.expr import own_functions
from anabranch.lang.schema import Schema, is_fixed_width
from anabranch.lang.window import FOREVER, CountWindow, SessionWindow
from anabranch.plan.cost_rank import ASSUMED_COMPARISON, ASSUMED_FUNCTION, assumed_share, costly_calls
from anabranch.plan.join_graph import JoinGraph, KeyClass, Relation, Theta
from anabranch.plan.pairwise import PairwiseWindows, compares_event_times, pairwise_windows
from anabranch.stats.view import Known, Provenance, StatisticsView

MOST_RELATIONS = 62
MOST_MERGED = 8
"""The number of relations above which only single relations are considered as merged inputs."""
ASSUMED_RATE = 1_000.0
ASSUMED_TABLE = 10_000.0
"""The assumed number of rows of a table."""
EVER = 1e9
"""The seconds that a table counts as present: its rows neither arrive nor leave."""
ASSUMED_PARTS = 100.0
"""The assumed number of parts of a count window with PARTITION BY."""
ASSUMED_BAND = 0.1
CHEAPEST = 0.1
"""The minimum weight of a check: even comparing numbers has a cost."""
ASSUMED_VALUE_BYTES = 24.0
WIRE_BYTES = 17.0
"""The bytes of a row besides its payload: the number of its relation, its time and at least one code."""
SHORTEST_WINDOW = 1e-6
"""The window of [NOW] in seconds: it keeps the rows of one instant, and event times have microseconds."""


@dataclass(frozen=True)
class Used:
    """One number that a choice is based on: its description, its value and its provenance."""

    what: str
    value: float
    provenance: Provenance


@dataclass(frozen=True)
class ThetaEstimate:
    """The relations of a theta, its selectivity, and True for a band, which can be looked up by bucket."""

    relations: int
    selectivity: float
    is_band: bool = False
    weight: float = 1.0
    """The cost of a check, relative to the check of an ordinary predicate."""


@dataclass(frozen=True)
class Estimates:
    """Rates, windows, row sizes and selectivities of a query, all known or assumed."""

    names: tuple[str, ...]
    rates: tuple[float, ...]
    windows: tuple[float, ...]
    """Seconds."""
    row_bytes: tuple[float, ...]
    keys: tuple[tuple[float, ...], ...]
    """The number of distinct values per relation, for each key class; 0 if the relation is not a member."""
    thetas: tuple[ThetaEstimate, ...] = ()
    used: tuple[Used, ...] = ()
    slide: float = 0.0
    """Seconds between the boundaries of a grouped query; 0 for any other."""
    groups: tuple[tuple[int, float], ...] = ()
    """For some sets of relations, the number of distinct rows at a boundary after merging the set."""
    arriving: tuple[float, ...] = ()
    """Rows per second before the filters; `rates` are after the filters."""

    def __post_init__(self) -> None:
        if len(self.names) > MOST_RELATIONS:
            raise PlanError(
                f"a query of {len(self.names)} relations is too large to plan",
                hint=f"at most {MOST_RELATIONS} may join",
            )

    @cached_property
    def positions(self) -> dict[str, int]:
        return {name: position for position, name in enumerate(self.names)}

    @property
    def longest_window(self) -> float:
        """Returns the seconds after which the windows of all streams are full; tables are complete from the start."""
        return max((window for window in self.windows if window < EVER), default=0.0)

    @property
    def everything(self) -> int:
        return (1 << len(self.names)) - 1

    def mask(self, relations: tuple[str, ...]) -> int:
        """Returns the bit mask of some relations."""
        found = self._masks.get(relations)
        if found is None:
            found = self._masks[relations] = sum(1 << self.positions[name] for name in relations)
        return found

    def windows_of(self, mask: int) -> tuple[float, ...]:
        """Returns the windows, in seconds, of the relations of a set."""
        return tuple(window for position, window in enumerate(self.windows) if mask >> position & 1)

    @cached_property
    def _masks(self) -> dict[tuple[str, ...], int]:
        return {}


def from_edges(
    rates: Mapping[str, float], window: float, selectivities: Mapping[tuple[str, str], float], row_bytes: float = 1.0
) -> Estimates:
    """Creates the estimates of a plain join graph: one independent selectivity per edge, one window for all."""
    names = tuple(rates)
    keys = tuple(
        tuple((1 / selectivity if selectivity else math.inf) if name in pair else 0.0 for name in names)
        for pair, selectivity in selectivities.items()
    )
    size = len(names)
    return Estimates(names, tuple(rates.values()), (window,) * size, (row_bytes,) * size, keys)


def from_statistics(
    graph: JoinGraph,
    seen: StatisticsView,
    *,
    horizon: float = 3600.0,
    slide: float = 0.0,
    pairwise: PairwiseWindows | None = None,
) -> Estimates:
    """Creates estimates from statistics; an unknown number is assumed, and marked as assumed.

    An unbounded window counts as `horizon` seconds, a table as `EVER`. An unknown rate is the mean of the known ones.
    An unknown equality is assumed to be a foreign key: each row matches about one row of the larger state. `pairwise`
    are the bounds by which rows expire; by default, those of the graph.
    """
    used: list[Used] = []

    def use(what: str, known: Known | None, assumed: float) -> float:
        value, provenance = (known.value, known.provenance) if known is not None else (assumed, "assumed")
        used.append(Used(what, value, provenance))
        return value

    pairwise = pairwise or pairwise_windows(graph)
    known_rates = [known.value for r in graph.streamed if (known := seen.rate(r.name, r.stream)) is not None]
    usual_rate = sum(known_rates) / len(known_rates) if known_rates else ASSUMED_RATE
    arriving: list[float] = []
    rates: list[float] = []
    windows: list[float] = []
    row_bytes: list[float] = []
    tables: dict[str, float] = {}
    for relation in graph.relations:
        if relation.is_table:
            # A table holds its rows, and almost none arrive: work over tables is done once.
            known_rows = seen.table_rows(relation.name, relation.stream)
            tables[relation.name] = use(f"rows of {relation.name}", known_rows, ASSUMED_TABLE)
            rate = tables[relation.name] / EVER
        else:
            rate = use(f"rate of {relation.name}", seen.rate(relation.name, relation.stream), usual_rate)
        arriving.append(rate)
        if relation.filter is not None:
            passing = seen.filter_selectivity(relation.name)
            rate *= use(f"selectivity of {relation.filter}", passing, assumed_share(relation.filter))
        rates.append(rate)
        windows.append(max(_seconds_kept(relation, rate, pairwise, use, horizon, bool(slide)), SHORTEST_WINDOW))
        known_bytes = seen.row_bytes(relation.name, relation.stream)
        row_bytes.append(use(f"bytes of a row of {relation.name}", known_bytes, payload_bytes(relation.schema)))
    sizes = dict(zip(graph.names, (rate * window for rate, window in zip(rates, windows, strict=True)), strict=True))
    keys = tuple(_distinct_values(key, graph, seen, {**sizes, **tables}, use) for key in graph.keys)
    distances = _distances(graph, pairwise, dict(zip(graph.names, windows, strict=True)))
    thetas = tuple(
        _theta(theta, graph, seen, use, distances.get(position)) for position, theta in enumerate(graph.thetas)
    )
    return Estimates(
        names=graph.names,
        rates=tuple(rates),
        windows=tuple(windows),
        row_bytes=tuple(row_bytes),
        keys=keys,
        thetas=thetas,
        slide=slide,
        groups=_known_groups(graph.names, seen, use) if slide else (),
        used=tuple(used),
        arriving=tuple(arriving),
    )


def _seconds_kept(
    relation: Relation, rate: float, pairwise: PairwiseWindows, use: _Use, horizon: float, is_grouped: bool
) -> float:
    """Returns how long a row of a relation is in its state."""
    is_core = relation.name in pairwise.windows
    reach = pairwise.lifetime(relation.name, to_the_end=is_grouped) if is_core else relation.window.reach
    endless = EVER if relation.is_table else horizon
    seconds = endless if reach >= FOREVER else reach / 1e6
    if isinstance(relation.window, CountWindow):
        # A count window holds its number of rows, at their rate.
        parts = use(f"parts of {relation.name}", None, ASSUMED_PARTS) if relation.window.partition else 1.0
        return min(seconds, relation.window.rows * parts / rate if rate else seconds)
    if isinstance(relation.window, SessionWindow):
        # A session is assumed to have a few rows, because its length is not measured.
        return 2 * relation.window.gap / 1e6
    return seconds


def _known_groups(relations: tuple[str, ...], seen: StatisticsView, use: _Use) -> tuple[tuple[int, float], ...]:
    """Returns the known numbers of groups of the sets of relations that a plan may merge."""
    groups = []
    for mask in _mergeable(len(relations)):
        names = [name for position, name in enumerate(relations) if mask >> position & 1]
        if (count := seen.number_of_groups(names)) is not None:
            groups.append((mask, use(f"groups of {' '.join(names)}", count, count.value)))
    return tuple(groups)


def traffic(estimates: Estimates) -> dict[str, float]:
    """Returns the bytes per second of each relation, including time and codes, for the choice of a grid."""
    each = zip(estimates.names, estimates.rates, estimates.row_bytes, strict=True)
    return {name: rate * (width + WIRE_BYTES) for name, rate, width in each}


def _mergeable(relations: int) -> Iterable[int]:
    """Returns the sets of relations that a plan may merge; only single relations if the query has many."""
    if relations > MOST_MERGED:
        return (1 << position for position in range(relations))
    return range(1, (1 << relations) - 1)


def payload_bytes(schema: Schema) -> float:
    """Returns the bytes of a row by its column types: one more for a nullable column, 24 for a text."""
    return sum(
        max(1.0, field.type.bit_width / 8) + field.nullable if is_fixed_width(field.type) else ASSUMED_VALUE_BYTES
        for field in schema
    )


_Use: TypeAlias = Callable[[str, Known | None, float], float]
"""Records the number used for one quantity, and returns it."""


def _distinct_values(
    key: KeyClass, graph: JoinGraph, seen: StatisticsView, sizes: Mapping[str, float], use: _Use
) -> tuple[float, ...]:
    """Returns distinct values per relation such that 1 / max of two of them is the known selectivity of that pair.

    `sizes` are the rows in the windows of streams, and all rows of tables: a stream row refers to one row of a table,
    which the table's filter may have removed.
    """
    members = [name for name, _ in key.members]
    tables = [sizes[name] for name in members if graph.relation(name).is_table]
    most = max(1.0, min(tables, default=math.inf))
    least: dict[str, float] = {}
    known: dict[tuple[str, str], Known] = {}
    for left, right in combinations(members, 2):
        pair = seen.pair_selectivity(left, right)
        if pair is not None:
            # If several classes connect a pair, each gets an equal part of the pair's selectivity.
            share = pair.value ** (1 / len(graph.keys_between([left], [right])))
            known[left, right] = Known(share, pair.provenance)
            values = 1 / share if share else math.inf
            least[left] = min(least.get(left, math.inf), values)
            least[right] = min(least.get(right, math.inf), values)
    distinct = {name: least.get(name, min(most, max(1.0, sizes[name]))) for name in members}
    reported = [*known, *(pair for pair in pairwise(members) if pair not in known)]
    for left, right in reported:
        text = f"selectivity of {key.expression(left)} = {key.expression(right)}"
        use(text, known.get((left, right)), 1 / max(distinct[left], distinct[right]))
    return tuple(distinct.get(name, 0.0) for name in graph.names)


def _distances(graph: JoinGraph, pairwise: PairwiseWindows, windows: Mapping[str, float]) -> dict[int, float]:
    """Returns, for each theta over event times, the fraction of pairs inside the windows that pass it.

    Rows match if they are at most as far apart as the pairwise windows allow. The first theta of a pair has the
    fraction of all thetas of the pair.
    """
    found: dict[int, float] = {}
    seen: set[frozenset[str]] = set()
    for position, theta in enumerate(graph.thetas):
        if theta.relations <= pairwise.windows.keys() and compares_event_times(graph, theta):
            one, other = sorted(theta.relations)
            near = (pairwise.between(one, other) + pairwise.between(other, one)) / 1e6
            share = min(1.0, near / (windows[one] + windows[other]))
            found[position] = 1.0 if theta.relations in seen else share
            seen.add(theta.relations)
    return found


def _theta(
    theta: Theta, graph: JoinGraph, seen: StatisticsView, use: _Use, distance: float | None = None
) -> ThetaEstimate:
    """Returns the estimate of a theta; `distance` is the fraction that a theta over event times passes by itself."""
    names = [name for name in graph.names if name in theta.relations]
    known = seen.predicate_selectivity(str(theta))
    left, right = names[:1], names[1:]
    alone = len(names) == 2 and not graph.keys_between(left, right) and len(graph.thetas_between(left, right)) == 1
    if known is None and alone:
        known = seen.pair_selectivity(*names)
    assumed = ASSUMED_BAND if theta.band is not None else ASSUMED_COMPARISON
    if len(names) == 1:
        assumed = assumed_share(theta.predicate)
    if distance is not None:
        # A sampled or measured selectivity is the fraction of pairs of which many are still in their windows.
        known, assumed = known if known is not None and known.provenance == "given" else None, distance
    value = use(f"selectivity of {theta}", known, assumed)
    mask = sum(1 << graph.names.index(name) for name in names)
    return ThetaEstimate(mask, value, theta.band is not None, _weight(theta, seen, use))


def _weight(theta: Theta, seen: StatisticsView, use: _Use) -> float:
    """Returns the cost of a check relative to an ordinary predicate: as measured, else by the functions that it
    calls.
    """
    check = unit_costs(seen)[0].check or ENGINE.check
    known = seen.predicate_cost(str(theta))
    if known is not None:
        return max(CHEAPEST, use(f"seconds of {theta}", known, known.value) / check)
    functions = own_functions(theta.predicate)
    costs = [use(f"cost of {f.name}", seen.function_cost(f.name), ASSUMED_FUNCTION[f.kind]) for f in functions]
    # Built-in costs are relative to the built-in cost of a check; costs of user functions were measured.
    return 1.0 + costly_calls(theta.predicate) / ENGINE.check + sum(costs) / check
