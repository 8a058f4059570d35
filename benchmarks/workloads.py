"""Seeded streams and the queries over them, as files: one file per stream and micro-batch.

A workload is a value; everything else (its files, its CQL text, its batch answer in SQL) is a function of it. Times are
uniform over the span and sorted within a stream, keys are uniform over a domain chosen so that the output has a wanted
size. Of n streams with N_i rows uniform over a span T, the combinations with max - min <= W fill the volume

    V = n W^(n-1) T - (n-1) W^n            (W <= T; the second term is what the two ends of the span cut off)

of T^n, and n - 1 equalities over a domain of K keep one in K^(n-1) of them. So the expected number of results is
prod(N_i) V / T^n / K^(n-1), and K follows from the wanted number. For W3 without the ends that is K = rate x W: one row
per key, stream and window.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as compute
import pyarrow.csv as pc
import pyarrow.parquet as pq

from benchmarks.columns import Column, Drawn, Integers, Uniform

SECOND = 1_000_000
EPOCH = 1_767_225_600 * SECOND
"""2026-01-01 UTC: where the event time of every workload begins."""
FIRST_FILE_TIME = 1_767_225_600
DATA = Path(__file__).parent / "data"
Form = Literal["parquet", "csv", "json", "arrow"]
ENDINGS: dict[Form, str] = {"arrow": "parquet"}
"""Of files whose form has another name."""


@dataclass(frozen=True)
class Stream:
    """One stream: its name, its rows over the whole span, and its columns between the time and the row's number `p`."""

    name: str
    rows: int
    columns: tuple[Column, ...]

    @property
    def spark_schema(self) -> str:
        columns = (f"{column.name} {column.spark_type}" for column in self.columns)
        return ", ".join(["ts timestamp", *columns, "p bigint"])


@dataclass(frozen=True)
class Equality:
    """One equality of the query: a key of one stream equals a key of an earlier one, by position."""

    left: int
    left_key: str
    right: int
    right_key: str


@dataclass(frozen=True)
class Band:
    """A predicate of the query: values of two streams, the later one first, are at most a width apart."""

    left: int
    left_column: str
    right: int
    right_column: str
    width: float


@dataclass(frozen=True)
class Workload:
    """Streams, a window join over them, and how the span is cut into micro-batches; lengths are in microseconds."""

    name: str
    streams: tuple[Stream, ...]
    equalities: tuple[Equality, ...]
    window: int
    span: int
    batches: int
    domain: int
    bands: tuple[Band, ...] = ()
    shown: tuple[tuple[int, str], ...] = ()
    """Columns of texts that results have beside the number of each row, by stream."""
    seed: int = 7
    form: Form = "parquet"
    """Of files and, if it is CSV, of results. In CSV, which has no header, the event time is a whole number of
    milliseconds since 1970: a form that needs no parsing of dates and that every system has. `arrow` are Parquet files
    that a Python data source reads (`arrow_source`)."""

    @property
    def rows(self) -> int:
        return sum(stream.rows for stream in self.streams)

    @property
    def grain(self) -> int:
        """Event times are multiples of this many microseconds."""
        return 1000 if self.form == "csv" else 1

    @property
    def ending(self) -> str:
        """The ending of the names of its files."""
        return ENDINGS.get(self.form, self.form)

    @property
    def results(self) -> Literal["parquet", "csv"]:
        """The form of results."""
        return "csv" if self.form == "csv" else "parquet"

    @property
    def cql(self) -> str:
        """The query as Anabranch reads it."""
        seconds, rest = divmod(self.window, SECOND)
        window = f"[RANGE {seconds} SECONDS]" if not rest else f"[RANGE {self.window} MICROSECONDS]"
        outputs = ", ".join(f"r{i}.{column} AS {column}{i}" for i, column in self.outputs)
        relations = ", ".join(f"{stream.name} {window} AS r{i}" for i, stream in enumerate(self.streams))
        on = [f"r{e.left}.{e.left_key} = r{e.right}.{e.right_key}" for e in self.equalities]
        on += [f"ABS(r{b.left}.{b.left_column} - r{b.right}.{b.right_column}) <= {b.width}" for b in self.bands]
        return f"SELECT {outputs} FROM {relations} WHERE {' AND '.join(on)}"

    @property
    def outputs(self) -> tuple[tuple[int, str], ...]:
        """The columns of a result, by stream; each has the number of its stream behind its name."""
        return (*((i, "p") for i in range(len(self.streams))), *self.shown)

    def answer_sql(self, sources: Sequence[str]) -> str | None:
        """The batch answer in DuckDB's SQL, each stream read from the source given for it; None for an inner join."""
        return None

    @property
    def counted(self) -> str:
        """The results that every system gives within the run, as a condition on their columns."""
        return "TRUE"

    @property
    def directory(self) -> Path:
        """Where the files are kept; the digest makes any change of the workload another directory."""
        return DATA / f"{self.name}-{self.rows}-{self.batches}-{sha256(repr(self).encode()).hexdigest()[:10]}"

    def path(self, stream: Stream) -> Path:
        return self.directory / stream.name


@dataclass(frozen=True)
class LeftJoins(Workload):
    """The first stream left-joined with each of the others on one key.

    A row without partner comes out when the watermark says so, which no system knows of the last rows of the run. So
    only the results of rows from before the last windows count.
    """

    @property
    def cql(self) -> str:
        window = f"[RANGE {self.window} MICROSECONDS]"
        outputs = ", ".join(f"r{i}.p AS p{i}" for i in range(len(self.streams)))
        first, *others = (f"{stream.name} {window} AS r{i}" for i, stream in enumerate(self.streams))
        joins = "".join(f" LEFT JOIN {other} ON r0.k = r{i}.k" for i, other in enumerate(others, start=1))
        return f"SELECT {outputs} FROM {first}{joins}"

    def answer_sql(self, sources: Sequence[str]) -> str:
        outputs = ", ".join(f"r{i}.p AS p{i}" for i in range(len(sources)))
        text = f"SELECT {outputs} FROM (SELECT epoch_us(ts) AS t, * FROM {sources[0]}) r0"
        for i, source in enumerate(sources[1:], start=1):
            near = [f"(r{j}.t IS NULL OR abs(r{i}.t - r{j}.t) <= {self.window})" for j in range(1, i)]
            on = " AND ".join(
                [f"r0.k = r{i}.k", f"r{i}.t BETWEEN r0.t - {self.window} AND r0.t + {self.window}", *near]
            )
            text += f" LEFT JOIN (SELECT epoch_us(ts) AS t, * FROM {source}) r{i} ON {on}"
        return text

    @property
    def counted(self) -> str:
        # Rows of the first stream are numbered in the order of their times.
        left = 4 * self.window + 3 * self.span // self.batches
        return f"p0 < {self.streams[0].rows * max(0, self.span - left) // self.span}"


@dataclass(frozen=True)
class TableJoin(Workload):
    """One stream joined with a table of `table_rows` keys, of which `domain` are asked for."""

    table_rows: int = 0

    @property
    def cql(self) -> str:
        return f"SELECT r0.p AS p0, t.p AS p1 FROM {self.streams[0].name} AS r0 JOIN facts AS t ON r0.k = t.k"

    def answer_sql(self, sources: Sequence[str]) -> str:
        return f"SELECT r0.p AS p0, t.p AS p1 FROM {sources[0]} r0 JOIN read_parquet('{self.table}') t ON r0.k = t.k"

    @property
    def outputs(self) -> tuple[tuple[int, str], ...]:
        return ((0, "p"), (1, "p"))

    @property
    def table(self) -> Path:
        return self.directory / "facts.parquet"

    def facts(self) -> pa.Table:
        keys = np.arange(self.table_rows, dtype=np.int64)
        return pa.table({"k": pa.array(keys), "p": pa.array(10 * keys)})


def domain_for_total(rows: tuple[int, ...], window: int, span: int, results: float) -> int:
    """The key domain at which the whole run is expected to give that many results."""
    count = len(rows)
    wide = min(window, span)
    volume = count * wide ** (count - 1) * span - (count - 1) * wide**count
    combinations = math.prod(rows) * (volume / span**count)
    return max(1, round(math.pow(combinations / results, 1 / (count - 1))))


def domain_for_rate(rows: tuple[int, ...], window: int, span: int, ratio: float) -> int:
    """The key domain at which, once the windows are full, each input row is expected to give `ratio` results."""
    count = len(rows)
    combinations = math.prod(rows) * count * math.pow(window / span, count - 1)
    return max(1, round(math.pow(combinations / (ratio * sum(rows)), 1 / (count - 1))))


def w3(
    rows: int, batches: int, *, window: int = 10 * SECOND, span: int = 400 * SECOND, form: Form = "parquet"
) -> Workload:
    """Three streams of equal rate on one key; about as many results as rows."""
    each = rows // 3
    sizes = (rows - 2 * each, each, each)
    streams = tuple(Stream(f"s{i}", size, (Uniform("k"),)) for i, size in enumerate(sizes))
    domain = domain_for_total(sizes, window, span, rows)
    return Workload("w3", streams, star(3), window, span, batches, domain, form=form)


def w4(rows: int, batches: int) -> Workload:
    """Four streams on one key, the last ten times as fast; it is named last because that order suits Spark best."""
    slow = rows // 13
    sizes = (slow, slow, slow, rows - 3 * slow)
    window, span = 10 * SECOND, 400 * SECOND
    streams = tuple(Stream(f"s{i}", size, (Uniform("k"),)) for i, size in enumerate(sizes))
    return Workload("w4", streams, star(4), window, span, batches, domain_for_total(sizes, window, span, rows))


def w3x(rows: int, batches: int) -> Workload:
    """A chain over two keys: a.x = b.x AND b.y = c.y."""
    each = rows // 3
    sizes = (rows - 2 * each, each, each)
    window, span = 10 * SECOND, 400 * SECOND
    x, y = Uniform("x"), Uniform("y")
    streams = (Stream("s0", sizes[0], (x,)), Stream("s1", sizes[1], (x, y)), Stream("s2", sizes[2], (y,)))
    equalities = (Equality(0, "x", 1, "x"), Equality(1, "y", 2, "y"))
    return Workload("w3x", streams, equalities, window, span, batches, domain_for_total(sizes, window, span, rows))


def left_joins(rows: int, batches: int) -> LeftJoins:
    """W3's streams, the first left-joined with the other two; about a third of its rows meet nothing of one."""
    plain = w3(rows, batches)
    return LeftJoins("left", plain.streams, plain.equalities, plain.window, plain.span, batches, plain.domain)


def table_join(rows: int, batches: int, table_rows: int = 100_000) -> TableJoin:
    """One stream and a table; half of the rows find a row of the table."""
    stream = Stream("s0", rows, (Uniform("k"),))
    return TableJoin("table", (stream,), (), 10 * SECOND, 400 * SECOND, batches, 2 * table_rows, table_rows=table_rows)


def steady(
    rows_per_batch: int,
    batches: int,
    *,
    batch: int = 2 * SECOND,
    window: int = 10 * SECOND,
    form: Form = "parquet",
) -> Workload:
    """W3 at a constant rate: each micro-batch covers `batch` of event time and one row gives one result."""
    each = max(1, rows_per_batch // 3) * batches
    span = batch * batches
    streams = tuple(Stream(f"s{i}", each, (Uniform("k"),)) for i in range(3))
    domain = domain_for_rate((each,) * 3, window, span, 1.0)
    return Workload("steady", streams, star(3), window, span, batches, domain, form=form)


def held(rows: int, batches: int) -> Workload:
    """W3 whose windows hold the whole run, so that all of its rows are state at the end; one result per ten rows."""
    each = rows // 3
    window = span = 400 * SECOND
    streams = tuple(Stream(f"s{i}", each, (Uniform("k"),)) for i in range(3))
    domain = domain_for_total((each,) * 3, window, span, rows / 10)
    return Workload("held", streams, star(3), window, span, batches, domain)


def tables(workload: Workload) -> Iterator[dict[str, pa.Table]]:
    """The micro-batches of a workload, each a table per stream; the same rows that `written` puts into files."""
    whole = {stream.name: _stream(workload, index) for index, stream in enumerate(workload.streams)}
    cuts = {stream.name: [*first_rows(workload, i), stream.rows] for i, stream in enumerate(workload.streams)}
    for number in range(workload.batches):
        yield {
            name: table.slice(cuts[name][number], cuts[name][number + 1] - cuts[name][number])
            for name, table in whole.items()
        }


def first_rows(workload: Workload, index: int) -> Integers:
    """The number of a stream's first row in each micro-batch; equal times never lie on both sides of a cut."""
    edges = np.arange(workload.batches, dtype=np.int64) * workload.span // workload.batches
    return np.searchsorted(_times(workload, index), edges)


def written(workload: Workload) -> Path:
    """The directory with the workload's files, written on first use."""
    directory = workload.directory
    if (directory / "ready.json").exists():
        return directory
    shutil.rmtree(directory, ignore_errors=True)
    for number, batch in enumerate(tables(workload)):
        for name, table in batch.items():
            write_file(directory / name, number, table, workload.form)
    if isinstance(workload, TableJoin):
        pq.write_table(workload.facts(), workload.table)
    (directory / "ready.json").write_text(json.dumps({"workload": repr(workload)}))
    return directory


def write_file(directory: Path, number: int, table: pa.Table, form: Form = "parquet") -> None:
    """Writes one micro-batch's file of a stream, dated so that a file source reads files in batch order."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"batch-{number:05}.{ENDINGS.get(form, form)}"
    if form in ("parquet", "arrow"):
        pq.write_table(table, path)
    elif form == "json":
        instants = compute.strftime(table["ts"], "%Y-%m-%dT%H:%M:%SZ")
        spelled = table.set_column(table.column_names.index("ts"), "ts", instants)
        with duckdb.connect() as connection:
            connection.register("spelled", spelled)
            connection.execute(f"COPY spelled TO '{path}' (FORMAT JSON)")
    else:
        milliseconds = table["ts"].cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
        plain = table.set_column(table.column_names.index("ts"), "ts", milliseconds)
        pc.write_csv(plain, path, pc.WriteOptions(include_header=False))
    os.utime(path, (FIRST_FILE_TIME + 10 * number,) * 2)


def star(count: int) -> tuple[Equality, ...]:
    return tuple(Equality(0, "k", i, "k") for i in range(1, count))


def _stream(workload: Workload, index: int) -> pa.Table:
    stream = workload.streams[index]
    times = [_times(workload, other) for other in range(len(workload.streams))]
    random = np.random.default_rng((workload.seed, index, 1))
    drawn = Drawn(times, index, workload.domain, workload.window, random)
    columns = {"ts": pa.array(times[index] + EPOCH).cast(pa.timestamp("us", tz="UTC"))}
    columns |= {column.name: column.values(drawn) for column in stream.columns}
    columns["p"] = pa.array(np.arange(stream.rows, dtype=np.int64))
    return pa.table(columns)


def _times(workload: Workload, index: int) -> Integers:
    """The event times of a stream, from the beginning of the span."""
    random = np.random.default_rng((workload.seed, index))
    times = np.sort(random.integers(0, workload.span, workload.streams[index].rows))
    return times // workload.grain * workload.grain
