"""The contract of a host, as checks that can be run against any host.

    for check in HOST_CHECKS:
        for workload in workloads():
            check(make_host, workload)

`make_host(query, plan)` starts the query. A host with a checkpoint resumes from it when it is created again, and must
also pass `DURABLE_HOST_CHECKS`. A check passes, or raises an AssertionError that names the rows that differ. Expected
answers come from the naive evaluator, which shares no code with the engine.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import pyarrow as pa

from anabranch.cql import compile_query
from anabranch.errors import AnabranchError
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.ddl import parse_schema
from anabranch.plan.physical import JoinNode, Leaf, PhysicalPlan, mjoin
from anabranch.plan.query import Query
from tests.support.oracle import Answer, batch_answer, describe_difference, rows_as_multiset
from tests.support.scripted import SECOND, read_rows

Batch: TypeAlias = Mapping[str, pa.Table]


class Host(Protocol):
    """A running query that processes one micro-batch after another."""

    late: dict[str, int]

    def step(self, rows: Batch) -> pa.Table: ...


HostMaker: TypeAlias = Callable[[Query, PhysicalPlan], Host]


@dataclass(frozen=True)
class Workload:
    """A query and the rows of its streams in order of arrival; no row is late, whatever the batches."""

    name: str
    query: Query
    rows: Mapping[str, pa.Table]

    @property
    def answer(self) -> Answer:
        return batch_answer(self.query, self.rows)

    def batches(self, size: int) -> list[dict[str, pa.Table]]:
        """The rows in batches of `size` rows of each stream."""
        longest = max(table.num_rows for table in self.rows.values())
        return [
            {name: table.slice(start, size) for name, table in self.rows.items() if start < table.num_rows}
            for start in range(0, longest, size)
        ]


HostCheck: TypeAlias = Callable[[HostMaker, Workload], None]

_QUERIES = {
    "a chain on two keys": (
        "SELECT a.v AS x, b.v AS y, c.v AS z FROM a [RANGE 6 SECONDS], b [RANGE 4 SECONDS], c [RANGE 9 SECONDS] "
        "WHERE a.k = b.k AND b.s = c.s"
    ),
    "no equality": "SELECT a.v AS x, b.v AS y FROM a [RANGE 3 SECONDS], b [RANGE 5 SECONDS] WHERE a.v < b.v",
    "one stream twice": (
        "SELECT l.v AS x, r.v AS y FROM a [RANGE 8 SECONDS] AS l, a [NOW] AS r WHERE l.k = r.k AND l.v <> r.v"
    ),
    "groups": (
        "SELECT WINDOW_END() AS at, a.s AS s, COUNT(*) AS n, SUM(b.v) AS total "
        "FROM a [RANGE 6 SECONDS SLIDE 3 SECONDS], b [RANGE 6 SECONDS] WHERE a.k = b.k GROUP BY a.s"
    ),
    "a filter alone": "SELECT a.k AS k, a.s AS s FROM a [NOW] WHERE a.v % 3 <> 0",
}


def workloads() -> tuple[Workload, ...]:
    """Small queries of every kind, over streams with ties, NULL keys and disorder."""
    catalog = Catalog()
    for name, disorder in (("a", 0), ("b", 2 * SECOND), ("c", 0)):
        schema = parse_schema("ts timestamp, k bigint, s string, v bigint")
        catalog.register(StreamDeclaration(name, schema, "ts", disorder))
    lines = []
    for i in range(24):
        key = "-" if i % 7 == 3 else str(i % 3)
        # Every other row of b arrives two seconds after its time.
        times = {"a": i // 2, "b": i - 2 * (i % 2), "c": i}
        lines += [f"{name} {max(0, time)} {key} {'pqr'[i % 3 - 1]} {i}" for name, time in times.items()]
    rows = read_rows(catalog, lines)
    several = []
    for title, text in _QUERIES.items():
        query = compile_query(text, catalog)
        several.append(Workload(title, query, {r.stream: rows[r.stream] for r in query.graph.relations}))
    return tuple(several)


def all_shapes(relations: Sequence[str]) -> Iterator[PhysicalPlan]:
    """Yields every plan over the relations up to the order of inputs: 1, 1, 4, 26 for one to four of them."""
    if len(relations) == 1:
        yield Leaf(relations[0])
        return
    for blocks in _partitions(list(relations)):
        if len(blocks) > 1:
            for inputs in itertools.product(*(list(all_shapes(block)) for block in blocks)):
                yield JoinNode(tuple(inputs))


# --- any host --------------------------------------------------------------------------------------------------------


def the_cut_does_not_matter(make: HostMaker, workload: Workload) -> None:
    """Any batch size gives the batch answer."""
    for size in (1, 5, 1000):
        host = make(workload.query, mjoin(workload.query.graph.names))
        _same(workload.answer, [host.step(batch) for batch in workload.batches(size)], f"batches of {size} rows")


def the_plan_does_not_matter(make: HostMaker, workload: Workload) -> None:
    """Every plan shape gives the batch answer."""
    for plan in all_shapes(workload.query.graph.names):
        host = make(workload.query, plan)
        _same(workload.answer, [host.step(batch) for batch in workload.batches(7)], f"plan {plan}")


def empty_batches_change_nothing(make: HostMaker, workload: Workload) -> None:
    """Batches without streams, and streams without rows, are accepted and give no results."""
    host = make(workload.query, mjoin(workload.query.graph.names))
    nothing = {name: table.slice(0, 0) for name, table in workload.rows.items()}
    results = []
    for batch in workload.batches(9):
        results += [host.step(batch)]
        for empty in ({}, nothing):
            answer = host.step(empty)
            assert answer.num_rows == 0, f"an empty batch brought {answer.num_rows} rows"
            assert answer.schema.names == list(workload.query.schema.names)
    _same(workload.answer, results, "with empty batches between")


def the_answer_has_the_declared_types(make: HostMaker, workload: Workload) -> None:
    """Every answer, empty or not, has the query's columns and types."""
    host = make(workload.query, mjoin(workload.query.graph.names))
    for batch in ({}, *workload.batches(12)):
        schema = host.step(batch).schema
        declared = [(field.name, field.type) for field in workload.query.schema]
        assert [(field.name, field.type) for field in schema] == declared


def an_unknown_stream_is_refused(make: HostMaker, workload: Workload) -> None:
    """A batch that names a stream the query does not read is refused by name, and none of it is processed."""
    host = make(workload.query, mjoin(workload.query.graph.names))
    for batch in workload.batches(1000):
        _refused(host, {**batch, "elsewhere": next(iter(batch.values()))}, "elsewhere")
        _same(workload.answer, [host.step(batch)], "after a refused batch")


def a_missing_column_is_refused(make: HostMaker, workload: Workload) -> None:
    """A table without a column that the query reads is refused by stream and column, and none of it is processed."""
    host = make(workload.query, mjoin(workload.query.graph.names))
    for batch in workload.batches(1000):
        stream, table = next(iter(batch.items()))
        _refused(host, {**batch, stream: table.drop_columns(["ts"])}, "'ts'")
        _same(workload.answer, [host.step(batch)], "after a refused batch")


def a_late_row_is_counted_once(make: HostMaker, workload: Workload) -> None:
    """Rows below the floor of their stream give no results and are counted, once for each relation."""
    host = make(workload.query, mjoin(workload.query.graph.names))
    results = [host.step(batch) for batch in workload.batches(1000)]
    _same(workload.answer, results, "before the late rows")
    assert not any(host.late.values()), f"rows are wrongly counted as late: {host.late}"
    late = {name: table.slice(0, 2) for name, table in workload.rows.items()}
    assert host.step(late).num_rows == 0, "late rows brought results"
    for name in late:
        readers = [r for r in workload.query.graph.relations if r.stream == name and r.filter is None]
        assert host.late[name] >= 2 * len(readers), f"{host.late[name]} late rows of '{name}'"
        assert host.late[name] <= 2 * sum(r.stream == name for r in workload.query.graph.relations)


# --- hosts with a checkpoint -----------------------------------------------------------------------------------------


def a_restart_changes_nothing(make: HostMaker, workload: Workload) -> None:
    """A host that restarts after every batch, with another plan each time, gives the batch answer."""
    shapes = itertools.cycle(all_shapes(workload.query.graph.names))
    results = [make(workload.query, next(shapes)).step(batch) for batch in workload.batches(4)]
    _same(workload.answer, results, "restarted after every batch")


def starting_again_is_not_a_batch(make: HostMaker, workload: Workload) -> None:
    """A start without a batch leaves the checkpoint unchanged."""
    results = []
    for batch in workload.batches(8):
        for _ in range(3):
            host = make(workload.query, mjoin(workload.query.graph.names))
        results.append(host.step(batch))
    _same(workload.answer, results, "started several times between batches")


HOST_CHECKS: tuple[HostCheck, ...] = (
    the_cut_does_not_matter,
    the_plan_does_not_matter,
    empty_batches_change_nothing,
    the_answer_has_the_declared_types,
    an_unknown_stream_is_refused,
    a_missing_column_is_refused,
    a_late_row_is_counted_once,
)
DURABLE_HOST_CHECKS: tuple[HostCheck, ...] = (a_restart_changes_nothing, starting_again_is_not_a_batch)


def _same(expected: Answer, results: list[pa.Table], how: str) -> None:
    difference = describe_difference(expected, rows_as_multiset(pa.concat_tables(results)))
    assert not difference, f"{how}: {difference}"


def _refused(host: Host, batch: Batch, named: str) -> None:
    refusal: AnabranchError | None = None
    try:
        host.step(batch)
    except AnabranchError as error:
        refusal = error
    assert refusal is not None, f"the batch was accepted, {named} notwithstanding"
    assert named in str(refusal), f"the error does not name {named}: {refusal}"
    assert refusal.hint, f"the error does not say what to do: {refusal}"


def _partitions(names: list[str]) -> Iterator[list[list[str]]]:
    """Yields all partitions of names into blocks."""
    if not names:
        yield []
        return
    first, *rest = names
    for blocks in _partitions(rest):
        yield [[first], *blocks]
        for i, block in enumerate(blocks):
            yield [*blocks[:i], [first, *block], *blocks[i + 1 :]]
