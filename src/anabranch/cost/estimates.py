"""Estimates of one query, the numbers that a cost model starts from; each unknown number gets an assumed one.

A relation has a rate (rows per second that pass its filter) and a window in seconds, so its state holds rate x window
rows; where bands over event times let rows go sooner, the window is as long as they stay. How two sides of a join
multiply is kept per key class as a number of distinct values for each member: two sides agree with the chance 1 / max
of their least counts (the usual containment assumption), which makes the estimate of a joined set independent of the
order in which it was joined. Thetas are independent of all else.

Sets of relations are bit masks in the order of the query's relations; that bounds a query to 62 relations.
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
from anabranch.plan.join_graph import JoinGraph, KeyClass, Theta
from anabranch.plan.pairwise import PairwiseWindows, compares_event_times, pairwise_windows
from anabranch.stats.view import Known, Provenance, StatisticsView

MOST_RELATIONS = 62
MOST_MERGED = 8
"""With more relations than this, only single relations are considered as merged inputs."""
ASSUMED_RATE = 1_000.0
ASSUMED_TABLE = 10_000.0
"""Rows of a table."""
EVER = 1e9
"""Seconds for which a table counts as having been there: its rows neither arrive nor leave."""
ASSUMED_PARTS = 100.0
"""Parts that a count window counts by themselves."""
ASSUMED_BAND = 0.1
CHEAPEST = 0.1
"""The least weight of a check: numbers of rows and of predicates cost something by themselves."""
ASSUMED_VALUE_BYTES = 24.0
WIRE_BYTES = 17.0
"""A row travels with the number of its relation, its time and at least one code."""
SHORTEST_WINDOW = 1e-6
"""Seconds; [NOW] keeps the rows of one instant, and the clock of event times ticks in microseconds."""


@dataclass(frozen=True)
class Used:
    """One number that a choice rests on: its description, its value and its provenance."""

    what: str
    value: float
    provenance: Provenance


@dataclass(frozen=True)
class ThetaEstimate:
    """The relations of a theta, its selectivity, and whether it is a band, which can be looked up by bucket."""

    relations: int
    selectivity: float
    is_band: bool = False
    weight: float = 1.0
    """How many checks of an ordinary predicate one check of it costs."""


@dataclass(frozen=True)
class Estimates:
    """Rates, windows, row sizes and selectivities of a query, all filled in."""

    names: tuple[str, ...]
    rates: tuple[float, ...]
    windows: tuple[float, ...]
    """Seconds."""
    row_bytes: tuple[float, ...]
    keys: tuple[tuple[float, ...], ...]
    """For each key class the distinct values per relation; 0 where the relation is not a member."""
    thetas: tuple[ThetaEstimate, ...] = ()
    used: tuple[Used, ...] = ()
    slide: float = 0.0
    """Seconds between the boundaries of a grouped query; 0 for any other."""
    groups: tuple[tuple[int, float], ...] = ()
    """For some sets of relations, how many different rows merging the set leaves at a boundary."""
    arriving: tuple[float, ...] = ()
    """Rows per second before the filters; the rates are those that pass."""

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
        """Seconds after which the windows of all streams are full; tables are there from the start."""
        return max((window for window in self.windows if window < EVER), default=0.0)

    @property
    def everything(self) -> int:
        return (1 << len(self.names)) - 1

    def mask(self, relations: tuple[str, ...]) -> int:
        """The bit mask of some relations."""
        found = self._masks.get(relations)
        if found is None:
            found = self._masks[relations] = sum(1 << self.positions[name] for name in relations)
        return found

    def windows_of(self, mask: int) -> tuple[float, ...]:
        """The windows, in seconds, of the relations of a set."""
        return tuple(window for position, window in enumerate(self.windows) if mask >> position & 1)

    @cached_property
    def _masks(self) -> dict[tuple[str, ...], int]:
        return {}


def from_edges(
    rates: Mapping[str, float], window: float, selectivities: Mapping[tuple[str, str], float], row_bytes: float = 1.0
) -> Estimates:
    """Estimates of a plain join graph: one independent selectivity per edge, one window for all."""
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
    """Estimates from statistics; a number that the view does not know is assumed, and marked so.

    An unbounded window counts as `horizon` seconds, a table as `EVER`. An unknown rate is the mean of the known ones;
    an unknown equality is taken for a foreign key (each row meets about one row of the larger state). `pairwise` are
    the pairwise windows that let rows go, unless all of the graph's do.
    """
    used: list[Used] = []

    def use(what: str, known: Known | None, assumed: float) -> float:
        value, provenance = (known.value, known.provenance) if known is not None else (assumed, "assumed")
        used.append(Used(what, value, provenance))
        return value

    known_rates = [known.value for r in graph.streamed if (known := seen.rate(r.name, r.stream)) is not None]
    fallback = sum(known_rates) / len(known_rates) if known_rates else ASSUMED_RATE
    arriving: list[float] = []
    pairwise = pairwise or pairwise_windows(graph)
    rates: list[float] = []
    windows: list[float] = []
    row_bytes: list[float] = []
    whole: dict[str, float] = {}
    for relation in graph.relations:
        if relation.is_table:
            # As many rows are held, and next to none arrives: what is built over tables is built once.
            known_rows = seen.table_rows(relation.name, relation.stream)
            whole[relation.name] = use(f"rows of {relation.name}", known_rows, ASSUMED_TABLE)
            rate = whole[relation.name] / EVER
        else:
            rate = use(f"rate of {relation.name}", seen.rate(relation.name, relation.stream), fallback)
        arriving.append(rate)
        if relation.filter is not None:
            passing = seen.filter_selectivity(relation.name)
            rate *= use(f"selectivity of {relation.filter}", passing, assumed_share(relation.filter))
        rates.append(rate)
        is_core = relation.name in pairwise.windows
        reach = pairwise.lifetime(relation.name, to_the_end=bool(slide)) if is_core else relation.window.reach
        endless = EVER if relation.is_table else horizon
        seconds = endless if reach >= FOREVER else reach / 1e6
        if isinstance(relation.window, CountWindow):
            # As many rows as the window counts, at the pace at which they come.
            parts = use(f"parts of {relation.name}", None, ASSUMED_PARTS) if relation.window.partition else 1.0
            seconds = min(seconds, relation.window.rows * parts / rate if rate else seconds)
        elif isinstance(relation.window, SessionWindow):
            # Sessions of a few rows; their length is not measured.
            seconds = 2 * relation.window.gap / 1e6
        windows.append(max(seconds, SHORTEST_WINDOW))
        known_bytes = seen.row_bytes(relation.name, relation.stream)
        row_bytes.append(use(f"bytes of a row of {relation.name}", known_bytes, payload_bytes(relation.schema)))
    sizes = dict(zip(graph.names, (rate * window for rate, window in zip(rates, windows, strict=True)), strict=True))
    keys = tuple(_distinct_values(key, graph, seen, {**sizes, **whole}, use) for key in graph.keys)
    distances = _distances(graph, pairwise, dict(zip(graph.names, windows, strict=True)))
    thetas = tuple(
        _theta(theta, graph, seen, use, distances.get(position)) for position, theta in enumerate(graph.thetas)
    )
    groups = []
    for mask in _mergeable(len(graph.names)) if slide else ():
        names = [name for position, name in enumerate(graph.names) if mask >> position & 1]
        if (count := seen.number_of_groups(names)) is not None:
            groups.append((mask, use(f"groups of {' '.join(names)}", count, count.value)))
    return Estimates(
        names=graph.names,
        rates=tuple(rates),
        windows=tuple(windows),
        row_bytes=tuple(row_bytes),
        keys=keys,
        thetas=thetas,
        used=tuple(used),
        slide=slide,
        groups=tuple(groups),
        arriving=tuple(arriving),
    )


def traffic(estimates: Estimates) -> dict[str, float]:
    """Bytes per second that each relation brings: what a grid is chosen by. Time and codes travel with every row."""
    each = zip(estimates.names, estimates.rates, estimates.row_bytes, strict=True)
    return {name: rate * (width + WIRE_BYTES) for name, rate, width in each}


def _mergeable(relations: int) -> Iterable[int]:
    """The sets of relations that a plan may merge; only single relations if the query has many."""
    if relations > MOST_MERGED:
        return (1 << position for position in range(relations))
    return range(1, (1 << relations) - 1)


def payload_bytes(schema: Schema) -> float:
    """Bytes of a row by its column types, one more for a column that may be NULL; text counts as two dozen bytes."""
    return sum(
        max(1.0, field.type.bit_width / 8) + field.nullable if is_fixed_width(field.type) else ASSUMED_VALUE_BYTES
        for field in schema
    )


_Use: TypeAlias = Callable[[str, Known | None, float], float]
"""Notes the number taken for one quantity, and returns it."""


def _distinct_values(
    key: KeyClass, graph: JoinGraph, seen: StatisticsView, sizes: Mapping[str, float], use: _Use
) -> tuple[float, ...]:
    """Distinct values per relation, such that 1 / max of two of them is the selectivity of that pair where known.

    `sizes` are rows in the windows of streams, and all rows of tables: a row of a stream refers to one row of a table,
    which the filter of the table may have taken away.
    """
    members = [name for name, _ in key.members]
    tables = [sizes[name] for name in members if graph.relation(name).is_table]
    most = max(1.0, min(tables, default=math.inf))
    least: dict[str, float] = {}
    known: dict[tuple[str, str], Known] = {}
    for left, right in combinations(members, 2):
        pair = seen.pair_selectivity(left, right)
        if pair is not None:
            # A pair that several classes connect shares its selectivity evenly among them.
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
    """For each theta over event times, the share of the pairs inside the windows that it leaves.

    Of two relations, rows meet that are at most as far apart as the pairwise windows say. The first theta of a pair
    stands for all of them.
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
    """`distance` is the share that a theta over event times leaves by itself."""
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
        # What was sampled or measured is a share of rows of which many have not left yet.
        known, assumed = known if known is not None and known.provenance == "given" else None, distance
    value = use(f"selectivity of {theta}", known, assumed)
    mask = sum(1 << graph.names.index(name) for name in names)
    return ThetaEstimate(mask, value, theta.band is not None, _weight(theta, seen, use))


def _weight(theta: Theta, seen: StatisticsView, use: _Use) -> float:
    """The cost of a check in checks of an ordinary predicate: as measured, else by the functions that it calls."""
    check = unit_costs(seen)[0].check or ENGINE.check
    known = seen.predicate_cost(str(theta))
    if known is not None:
        return max(CHEAPEST, use(f"seconds of {theta}", known, known.value) / check)
    functions = own_functions(theta.predicate)
    costs = [use(f"cost of {f.name}", seen.function_cost(f.name), ASSUMED_FUNCTION[f.kind]) for f in functions]
    # The built-in costs are in proportion to the built-in cost of a check, those of one's own functions were measured.
    return 1.0 + costly_calls(theta.predicate) / ENGINE.check + sum(costs) / check
