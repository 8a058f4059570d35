"""The batch answer of a query, computed naively; every plan, batch cut, migration and restart must reproduce it.

It follows the contract exactly and shares no code with the engine. A combination of one row per relation is a result
iff all predicates are true and, with `newest` its largest event time, newest - time <= range for every row. A row of a
count window must be among the last n rows, before any filter, of those not newer than `newest`. Outer, semi and anti
joins process such combinations one side after the other; an unmatched one is a result if its deadline is before the
final watermark. A grouped query answers at every multiple of its slide strictly below the final watermark, over the
rows that are at or before that boundary and within range of it. Rows without an event time are ignored. Callers leave
out late rows.

Answers are multisets (`Counter`) of plain tuples in output order; times are int microseconds and floats keep nine
significant digits, because sums of floats depend on their order. Limit: meant for up to about sixty rows per stream.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal, localcontext
from fractions import Fraction
from functools import cmp_to_key
from types import MappingProxyType
from typing import Any, TypeAlias

import pyarrow as pa

from anabranch.errors import ExpressionError
from anabranch.lang.expr import GROUPED, AggregateCall, Column, Expr, conjuncts
from anabranch.lang.window import BEFORE_ALL, CountWindow, Tumble, Window
from anabranch.plan.join_graph import JoinGraph, Relation
from anabranch.plan.logical import SideKind
from anabranch.plan.query import Grouping, Query
from anabranch.plan.sides import Side
from tests.support.interpreter import Value, column_values, interpret, order

Answer: TypeAlias = Counter[tuple[Any, ...]]
TimedResult: TypeAlias = tuple[int, Sequence[Value]]
Row: TypeAlias = dict[str, Value]
Combination: TypeAlias = dict[str, Any]
"""The row of each relation; None for a relation without a row because of an outer join."""

_TIME = ""
"""The key of a row's event time; no column has an empty name."""
_CLOSED = " "
"""The key of the time at which enough later rows have arrived that a row leaves its count window."""


def batch_answer(query: Query, rows: Mapping[str, pa.Table], watermark: int | None = None) -> Answer:
    """Returns all results of the query over whole streams, `rows` by stream name.

    The final watermark of a grouped query follows from the rows, unless the caller passes one, for instance because of
    idle streams.
    """
    tables = {name.lower(): table for name, table in rows.items()}
    return Counter(tuple(map(comparable, values)) for _, values in timed_results(query, tables, watermark))


def timed_results(
    query: Query,
    tables: Mapping[str, pa.Table],
    watermark: int | None = None,
    before: float = math.inf,
    known: Mapping[str, Iterable[TimedResult]] = MappingProxyType({}),
) -> Iterator[tuple[int, list[Value]]]:
    """Yields the results of the query with their event times; `tables` by stream name, in lower case.

    Where rows wait for the watermark of all queries, those that are not `before` it are still waiting. The results of
    queries that it reads are computed, unless they are `known`.

    The event time of a result is that of the newest row of its combination, also for an unmatched combination that is
    known later; for a grouped query it is the boundary. Results of a query that this one reads are rows like any other.
    """
    given = _given(query, query.whole.relations, tables, before, known)
    until = min(watermark_of(query, tables) if watermark is None else watermark, before)
    if query.grouping is None:
        for combination in _around(query, _combinations(query.graph, given), given, until):
            values = [interpret(output.expression, _lookup(combination)) for output in query.outputs]
            yield max(row[_TIME] for row in combination.values() if row is not None), values
    elif query.grouping.gap:
        yield from _sessions(query, query.grouping, given, until)
    elif query.sides:
        yield from _grouped_around(query, query.grouping, given, until)
    else:
        yield from _grouped_answer(query, query.grouping, _combinations(query.graph, given), until)


def _given(
    query: Query,
    relations: Iterable[Relation],
    tables: Mapping[str, pa.Table],
    before: float,
    known: Mapping[str, Iterable[TimedResult]],
) -> dict[str, list[Row]]:
    """Returns the rows of each relation: of a stream, of a table, or the results of a query."""
    inputs = dict(query.inputs)
    given = {}
    for relation in relations:
        if relation.is_result:
            rows = [
                {_TIME: time, **dict(zip(_names(below), values, strict=True))}
                for name in relation.producers
                for below in (inputs[name],)
                for time, values in (known[name] if name in known else timed_results(below, tables, before=before))
            ]
            if relation.event_time:
                rows = [{**row, _TIME: row[relation.event_time.lower()]} for row in rows]
            # A group of `window()` has the time at which its window ends, which is the watermark that passes it.
            rows = [row for row in rows if row[_TIME] < before]
            if isinstance(relation.window, CountWindow):
                _count(relation, relation.window, rows)
            given[relation.name] = _passing(relation, rows)
        else:
            arrived = _rows(relation, tables[relation.stream.lower()])
            given[relation.name] = [row for row in arrived if row[_TIME] < before]
    return given


def _names(query: Query) -> list[str]:
    return [output.name.lower() for output in query.outputs]


def rows_as_multiset(table: pa.Table) -> Answer:
    """Converts an engine's results to the comparable form of `batch_answer`."""
    columns = [[comparable(value) for value in column_values(column)] for column in table.columns]
    return Counter(zip(*columns, strict=True)) if columns else Counter({(): table.num_rows})


def describe_difference(expected: Answer, actual: Answer) -> str:
    """Lists a few missing and a few unexpected rows; empty if the answers agree."""
    lines = []
    for title, rest in (("missing", expected - actual), ("unexpected", actual - expected)):
        if rest:
            lines.append(f"{rest.total()} {title} of {expected.total()} expected:")
            lines += [f"  {count} x {row}" for row, count in sorted(rest.items(), key=str)[:10]]
    return "\n".join(lines)


def comparable(value: Value) -> Value:
    """Makes a value hashable, and numbers equal that differ only by float rounding."""
    match value:
        case float():
            if math.isnan(value):
                return "NaN"
            return float(f"{value:.9g}") + 0.0
        case list():
            return tuple(comparable(item) for item in value)
        case dict():
            return tuple((name, comparable(item)) for name, item in value.items())
        case _:
            return value


# --- joining ---------------------------------------------------------------------------------------------------------


def _rows(relation: Relation, table: pa.Table) -> list[Row]:
    """Returns the relation's rows that have an event time and pass its filter."""
    # The relation's schema lists what results need; filters and keys may read more columns of the stream.
    columns = {name.lower(): column_values(table[name]) for name in table.column_names}
    columns[_TIME] = [BEFORE_ALL] * table.num_rows if relation.is_table else columns[relation.event_time.lower()]
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    timed = [row for row in rows if row[_TIME] is not None]
    if isinstance(relation.window, CountWindow):
        _count(relation, relation.window, timed)
    return _passing(relation, timed)


def _count(relation: Relation, window: CountWindow, rows: list[Row]) -> None:
    """Records for each row when its n-th successor arrives, by time and then by the columns that the query names."""
    names = [_TIME, *(name.lower() for name in relation.schema.names)]

    def compare(left: Row, right: Row) -> int:
        for name in names:
            one, other = left[name], right[name]
            if one is None or other is None:
                found = int(one is not None) - int(other is not None)
            else:
                found = order(one, other)
            if found:
                return found
        return 0

    parts: dict[tuple[Value, ...], list[Row]] = defaultdict(list)
    for row in sorted(rows, key=cmp_to_key(compare)):
        parts[tuple(_group_key(row[name.lower()]) for name in window.partition)].append(row)
    for part in parts.values():
        for place, row in enumerate(part):
            later = part[place + window.rows : place + window.rows + 1]
            row[_CLOSED] = later[0][_TIME] if later else math.inf


def _passing(relation: Relation, timed: list[Row]) -> list[Row]:
    condition = relation.filter if relation.condition is None else relation.condition
    if condition is None:
        return timed
    tests = conjuncts(condition)
    return [row for row in timed if all(interpret(test, _lookup({relation.name: row})) is True for test in tests)]


def _lookup(combination: Combination) -> Callable[[Column], Value]:
    def read(column: Column) -> Value:
        # A relation without a row because of an outer join.
        row = combination[column.relation]
        return None if row is None else row[column.name.lower()]

    return read


def _combinations(graph: JoinGraph, rows: Mapping[str, list[Row]]) -> Iterator[Combination]:
    """Yields every valid combination, relation by relation; each condition is tested once all its columns are bound."""
    sequence = _sequence(graph)
    indexes = [_Index(graph, relation.name, sequence[:step], rows) for step, relation in enumerate(sequence)]

    def extend(bound: Combination, newest: float, deadline: float) -> Iterator[Combination]:
        if len(bound) == len(sequence):
            yield dict(bound)
            return
        relation, index = sequence[len(bound)], indexes[len(bound)]
        for row in index.candidates(bound):
            time = row[_TIME]
            leaves = _leaves(relation.window, row)
            if max(newest, time) > min(deadline, leaves):
                continue
            bound[relation.name] = row
            if all(interpret(test, _lookup(bound)) is True for test in index.tests):
                yield from extend(bound, max(newest, time), min(deadline, leaves))
            del bound[relation.name]

    yield from extend({}, -math.inf, math.inf)


def _leaves(window: Window, row: Row) -> float:
    """The last time at which a row is in its window."""
    time: int = row[_TIME]
    if isinstance(window, CountWindow):
        closed: float = row[_CLOSED] - 1
        return min(closed, math.inf if window.range is None else time + window.range)
    if window.range is None:
        return math.inf
    if isinstance(window, Tumble):
        size = window.range + 1
        return (time // size + 1) * size - 1
    return time + window.range


def _sequence(graph: JoinGraph) -> list[Relation]:
    """Orders the relations so that each is connected to an earlier one if possible."""
    left = list(graph.relations)
    sequence = [left.pop(0)]
    while left:
        names = [relation.name for relation in sequence]
        by_key = [relation for relation in left if graph.keys_between(names, [relation.name])]
        by_any = [relation for relation in left if graph.are_connected(names, [relation.name])]
        chosen = (by_key or by_any or left)[0]
        left.remove(chosen)
        sequence.append(chosen)
    return sequence


class _Index:
    """The rows of one relation by the keys it shares with the relations bound before it."""

    def __init__(self, graph: JoinGraph, name: str, before: list[Relation], rows: Mapping[str, list[Row]]) -> None:
        earlier = [relation.name for relation in before]
        self.partners: list[Expr] = []
        own: list[Expr] = []
        for key in graph.keys_of([name]):
            partner = next((other for other in earlier if other in key.relations), None)
            if partner is not None:
                self.partners.append(key.expression(partner))
                own.append(key.expression(name))
        self.tests = [theta.predicate for theta in graph.thetas_between(earlier, [name])]
        self.rows: dict[tuple[Value, ...], list[Row]] = defaultdict(list)
        for row in rows[name]:
            key_values = tuple(_key(interpret(expr, _lookup({name: row}))) for expr in own)
            if None not in key_values:
                self.rows[key_values].append(row)

    def candidates(self, bound: Combination) -> list[Row]:
        wanted = tuple(_key(interpret(expr, _lookup(bound))) for expr in self.partners)
        return [] if None in wanted else self.rows.get(wanted, [])


def _key(value: Value) -> Value:
    """Returns a dictionary key that is equal when SQL says equal: NaN is one value, -0.0 is 0.0."""
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


# --- outer, semi and anti joins ---------------------------------------------------------------------------------------


def _around(
    query: Query, combinations: Iterator[Combination], rows: Mapping[str, list[Row]], watermark: float
) -> Iterator[Combination]:
    """Applies the sides to the combinations of the core, one side after the other.

    An unmatched combination is yielded only if the watermark has passed its deadline.
    """
    windows = {relation.name: relation.window for relation in query.whole.relations}
    several = list(combinations)
    for side in query.sides:
        several = list(_at_side(side, several, rows, windows, watermark))
    tests = () if query.condition is None else conjuncts(query.condition)
    return (each for each in several if all(interpret(test, _lookup(each)) is True for test in tests))


def _at_side(
    side: Side,
    several: list[Combination],
    rows: Mapping[str, list[Row]],
    windows: Mapping[str, Window],
    watermark: float,
) -> Iterator[Combination]:
    tests = [theta.predicate for theta in side.graph.thetas]
    tests += [test for each in (side.ready, side.residual) if each is not None for test in conjuncts(each)]
    met: set[tuple[int, ...]] = set()
    absent: Combination = dict.fromkeys(side.names)
    for combination in several:
        found = False
        for partners in itertools.product(*(rows[name] for name in side.names)):
            whole = {**combination, **dict(zip(side.names, partners, strict=True))}
            if not _is_valid(whole, windows) or not _agrees(side.graph, whole):
                continue
            if not all(interpret(test, _lookup(whole)) is True for test in tests):
                continue
            met.add(tuple(map(id, partners)))
            if side.kind.extends:
                yield whole
            elif side.kind is SideKind.SEMI and not found:
                yield combination
            found = True
        is_known = side.is_known_at_once or _deadline(combination, windows) < watermark
        if not found and side.kind is not SideKind.SEMI and is_known:
            yield {**combination, **absent} if side.kind.extends else combination
    if side.kind is SideKind.FULL:
        for partners in itertools.product(*(rows[name] for name in side.names)):
            own: Combination = dict(zip(side.names, partners, strict=True))
            if tuple(map(id, partners)) not in met and _is_valid(own, windows) and _deadline(own, windows) < watermark:
                yield {**dict.fromkeys(side.before), **own}


def _agrees(graph: JoinGraph, combination: Combination) -> bool:
    """True if all members of each key class are equal. For an absent row, a member may be NULL or have a value."""
    for key in graph.keys:
        members = ((combination[name], interpret(expression, _lookup(combination))) for name, expression in key.members)
        values = [_key(value) for row, value in members if row is not None or value is not None]
        if None in values or len(set(values)) > 1:
            return False
    return True


def _is_valid(combination: Combination, windows: Mapping[str, Window]) -> bool:
    times = [row[_TIME] for row in combination.values() if row is not None]
    return bool(max(times) <= _deadline(combination, windows))


def _deadline(combination: Combination, windows: Mapping[str, Window]) -> float:
    return min(_leaves(windows[name], row) for name, row in combination.items() if row is not None)


def _grouped_around(
    query: Query, grouping: Grouping, rows: Mapping[str, list[Row]], watermark: float
) -> Iterator[tuple[int, list[Value]]]:
    """Yields, at each boundary, the answer of the query over the rows that are in their windows there."""
    times = [row[_TIME] for relation in query.whole.streamed for row in rows[relation.name]]
    if not times or watermark == -math.inf:
        return
    windows = {relation.name: relation.window for relation in query.whole.relations}
    boundary = min(times) // grouping.slide * grouping.slide
    last = max(times) + max(window.reach for window in windows.values()) + grouping.lag
    while boundary < watermark + grouping.lag and boundary <= last:
        # Windows that exclude their end hold the rows of one microsecond before it.
        instant = boundary - grouping.lag
        inside = {
            name: [row for row in several if row[_TIME] <= instant <= _deadline({name: row}, windows)]
            for name, several in rows.items()
        }
        here = list(_around(query, _combinations(query.graph, inside), inside, math.inf))
        yield from _grouped_at(query, grouping, here, boundary)
        boundary += grouping.slide


# --- grouping --------------------------------------------------------------------------------------------------------


def watermark_of(query: Query, tables: Mapping[str, pa.Table]) -> float:
    """The minimum, over the streams, of the largest event time minus the allowed disorder."""
    inputs, marks = dict(query.inputs), []
    for relation in query.whole.streamed:
        if relation.is_result:
            marks += [watermark_of(inputs[name], tables) - relation.behind for name in relation.producers]
            continue
        table = tables[relation.stream.lower()]
        names = {name.lower(): name for name in table.column_names}
        times = [time for time in column_values(table[names[relation.event_time.lower()]]) if time is not None]
        marks.append(max(times) - relation.disorder if times else -math.inf)
    return min(marks)


def _grouped_at(
    query: Query, grouping: Grouping, combinations: list[Combination], boundary: int
) -> Iterator[tuple[int, list[Value]]]:
    """Yields the groups of combinations at one boundary."""
    groups: dict[tuple[Value, ...], list[Combination]] = defaultdict(list)
    values: dict[tuple[Value, ...], tuple[Value, ...]] = {}
    for combination in combinations:
        key = tuple(interpret(expression, _lookup(combination)) for expression in grouping.keys)
        place = tuple(_group_key(value) for value in key)
        groups[place].append(combination)
        values.setdefault(place, key)
    for place, members in groups.items():
        yield from _answer_of(query, grouping, boundary, values[place], members)


def _answer_of(
    query: Query, grouping: Grouping, boundary: int, key: tuple[Value, ...], members: list[Combination]
) -> Iterator[tuple[int, list[Value]]]:
    """Yields the answer row of one group, unless HAVING rejects it."""
    row: Row = {"boundary": boundary}
    row |= {f"key{index}": value for index, value in enumerate(key)}
    if grouping.ranked is not None:
        yield from _first_rows(query, grouping.ranked, row, members)
        return
    row |= {f"aggregate{index}": _aggregate(call, members) for index, call in enumerate(grouping.aggregates)}
    lookup = _lookup({GROUPED: row})
    tests = () if grouping.having is None else conjuncts(grouping.having)
    if all(interpret(test, lookup) is True for test in tests):
        yield boundary, [interpret(output.expression, lookup) for output in query.outputs]


def _sessions(
    query: Query, grouping: Grouping, rows: Mapping[str, list[Row]], watermark: float
) -> Iterator[tuple[int, list[Value]]]:
    """Yields the groups of the runs of rows with small gaps; a session ends one gap after its last row."""
    (relation,) = query.graph.relations
    groups: dict[tuple[Value, ...], list[Combination]] = defaultdict(list)
    for row in sorted(rows[relation.name], key=lambda row: row[_TIME]):
        combination: Combination = {relation.name: row}
        key = tuple(interpret(expression, _lookup(combination)) for expression in grouping.keys)
        groups[tuple(_group_key(value) for value in key)].append(combination)
    for members in groups.values():
        session = [members[0]]
        for member in [*members[1:], None]:
            last = session[-1][relation.name][_TIME]
            if member is not None and member[relation.name][_TIME] - last <= grouping.gap:
                session.append(member)
                continue
            if last + grouping.gap < watermark:
                key = tuple(interpret(expression, _lookup(session[0])) for expression in grouping.keys)
                yield from _answer_of(query, grouping, last + grouping.gap, key, session)
            session = [] if member is None else [member]


def _first_rows(
    query: Query, call: AggregateCall, group: Row, members: list[Combination]
) -> Iterator[tuple[int, list[Value]]]:
    """Yields the first rows of a group, by the sort keys and then by the values of a row, NULL first."""
    ranking, grouping = call.ranking, query.grouping
    assert ranking is not None
    assert grouping is not None
    count = len(call.arguments) - len(ranking.is_descending)
    directions = [*zip(ranking.is_descending, ranking.nulls_first, strict=True), *[(False, True)] * count]

    def compare(left: list[Value], right: list[Value]) -> int:
        ordered = zip([*left[count:], *left[:count]], [*right[count:], *right[:count]], directions, strict=True)
        for one, other, (is_descending, nulls_first) in ordered:
            if one is None or other is None:
                found = (int(one is not None) - int(other is not None)) * (1 if nulls_first else -1)
            else:
                found = order(one, other) * (-1 if is_descending else 1)
            if found:
                return found
        return 0

    rows = [[interpret(each, _lookup(member)) for each in call.arguments] for member in members]
    for place, values in enumerate(sorted(rows, key=cmp_to_key(compare))[: ranking.rows], start=1):
        row = {**group, "row_number": place} | {f"ranked_value{i}": value for i, value in enumerate(values)}
        lookup = _lookup({GROUPED: row})
        tests = () if grouping.having is None else conjuncts(grouping.having)
        if all(interpret(test, lookup) is True for test in tests):
            yield group["boundary"], [interpret(output.expression, lookup) for output in query.outputs]


def _grouped_answer(
    query: Query, grouping: Grouping, combinations: Iterator[Combination], watermark: float
) -> Iterator[tuple[int, list[Value]]]:
    groups: dict[tuple[int, tuple[Value, ...]], list[Combination]] = defaultdict(list)
    values: dict[tuple[int, tuple[Value, ...]], tuple[Value, ...]] = {}
    windows = {relation.name: relation.window for relation in query.graph.relations}
    for combination in combinations:
        key = tuple(interpret(expression, _lookup(combination)) for expression in grouping.keys)
        for boundary in _boundaries(combination, windows, grouping, watermark):
            place = (boundary, tuple(_group_key(value) for value in key))
            groups[place].append(combination)
            values.setdefault(place, key)
    for place, members in groups.items():
        yield from _answer_of(query, grouping, place[0], values[place], members)


def _boundaries(
    combination: Combination, windows: Mapping[str, Window], grouping: Grouping, watermark: float
) -> Iterator[int]:
    """Yields the multiples of the slide below the watermark at which all rows are present and none has expired.

    Windows that exclude their end hold the rows before it, over their whole size.
    """
    slide, times = grouping.slide, [row[_TIME] for row in combination.values()]
    boundary = (max(times) // slide) * slide
    low = min(
        _leaves(window, combination[name])
        if isinstance(window, CountWindow)
        else combination[name][_TIME] + (math.inf if window.range is None else window.range + grouping.lag)
        for name, window in windows.items()
    )
    while boundary <= low and boundary <= watermark:
        is_inside = max(times) < boundary if grouping.lag else max(times) <= boundary
        is_passed = boundary <= watermark if grouping.lag else boundary < watermark
        if is_inside and is_passed:
            yield boundary
        boundary += slide


def _group_key(value: Value) -> tuple[bool, Value]:
    return (value is None, _key(value))


def _aggregate(call: AggregateCall, members: list[Combination]) -> Value:
    if call.argument is None:
        return len(members)
    argument = call.argument
    values = [interpret(argument, _lookup(member)) for member in members]
    if call.function in ("min_by", "max_by", "collect_list"):
        return _by(call, values, [interpret(call.others[0], _lookup(member)) for member in members])
    present = [value for value in values if value is not None]
    if call.function == "count":
        return len(present)
    if call.function == "count_distinct":
        return len({_key(value) for value in present})
    if not present:
        return None
    match call.function:
        case "sum":
            return _sum(call, present)
        case "avg" if isinstance(present[0], Decimal):
            with localcontext(Context(prec=100)) as context:
                mean = _exact_sum(present) / len(present)
                return mean.quantize(Decimal(1).scaleb(-call.type.scale), ROUND_HALF_UP, context)
        case "avg":
            total = _exact_sum(present)
            return float(total) / len(present)
        case "percentile":
            return _percentile(sorted(present, key=cmp_to_key(order)), interpret(call.others[0], _nothing))
        case "stddev_samp" | "stddev_pop" | "var_samp" | "var_pop":
            return _spread(call.function, present)
        case "min" | "max":
            sign = 1 if call.function == "max" else -1
            best = present[0]
            for value in present[1:]:
                best = value if sign * order(value, best) > 0 else best
            return best
    raise AssertionError(f"no aggregate '{call.function}'")


def _nothing(column: Column) -> Value:
    raise AssertionError(f"'{column}' is not a constant")


def _by(call: AggregateCall, values: list[Value], times: list[Value]) -> Value:
    """Returns the value at the smallest or largest other value, or the first values; for ties, the smallest value."""
    sign = -1 if call.function == "max_by" else 1

    def compare(left: tuple[Value, Value], right: tuple[Value, Value]) -> int:
        found = sign * order(left[0], right[0])
        if found or left[1] is None or right[1] is None:
            return found or int(left[1] is None) - int(right[1] is None)
        return order(left[1], right[1])

    ordered = sorted(((t, v) for t, v in zip(times, values, strict=True) if t is not None), key=cmp_to_key(compare))
    if call.function == "collect_list":
        return [value for _, value in ordered if value is not None][: interpret(call.others[1], _nothing)]
    return ordered[0][1] if ordered else None


def _percentile(values: list[Value], share: float) -> float:
    place = share * (len(values) - 1)
    low = math.floor(place)
    rest = place - low
    return float(values[low]) if not rest else (1 - rest) * values[low] + rest * values[low + 1]


def _spread(function: str, values: list[Value]) -> Value:
    if function.endswith("samp") and len(values) < 2:
        return None
    if not all(math.isfinite(value) for value in values):
        return math.nan
    exact = [Fraction(value) for value in values]
    mean = sum(exact) / len(exact)
    variance = float(sum((value - mean) ** 2 for value in exact) / (len(exact) - function.endswith("samp")))
    return math.sqrt(variance) if function.startswith("stddev") else variance


def _sum(call: AggregateCall, values: list[Value]) -> Value:
    total = _exact_sum(values)
    if isinstance(total, int) and not -(2**63) <= total < 2**63:
        raise ExpressionError(f"aggregate '{call}' overflows")
    if isinstance(total, Decimal) and abs(total) >= Decimal(10) ** (call.type.precision - call.type.scale):
        raise ExpressionError(f"aggregate '{call}' overflows")
    return total


def _exact_sum(values: list[Value]) -> Value:
    if isinstance(values[0], float):
        finite = all(math.isfinite(value) for value in values)
        return math.fsum(values) if finite else sum(values)
    with localcontext(Context(prec=100)):
        return sum(values)
