"""The batch answer of a workload by DuckDB, and the digest of what a system wrote, to be equal before anything counts.

The digest is the number of results and the sum of each output column, of texts the sum of their lengths: cheap, and
blind only to exchanges that keep all of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.workloads import Stream, Workload, written


@dataclass(frozen=True)
class Digest:
    """Number of results and the sum of each of their columns."""

    count: int
    sums: tuple[int, ...]


def expected(workload: Workload) -> Digest:
    """The digest of the batch answer; computed once per workload and kept beside its files."""
    kept = written(workload) / "answer.json"
    if kept.exists():
        found = json.loads(kept.read_text())
        return Digest(found["count"], tuple(found["sums"]))
    files = [_read(workload, stream) for stream in workload.streams]
    with duckdb.connect() as connection:
        answer_sql = workload.answer_sql(files) or batch_sql(workload, files)
        row = connection.execute(f"{_digest_columns(workload)} FROM ({answer_sql}) WHERE {workload.counted}").fetchone()
    answer = _digest(row)
    kept.write_text(json.dumps(asdict(answer)))
    return answer


def found_in(workload: Workload, output: Path) -> Digest:
    """The digest of the result files below a directory; other systems name CSV files in their own way."""
    named = "*.parquet" if workload.results == "parquet" else "part-*"
    files = [str(file) for file in output.rglob(named) if file.is_file() and "_temporary" not in file.parts]
    if not files:
        return Digest(0, (0,) * len(workload.outputs))
    with duckdb.connect() as connection:
        names = ", ".join(f"'{column}{i}': 'BIGINT'" for i, column in workload.outputs)
        reading = (
            "read_parquet(?)" if workload.results == "parquet" else f"read_csv(?, header=false, columns={{{names}}})"
        )
        counted = f"{_digest_columns(workload)} FROM {reading} WHERE {workload.counted}"
        row = connection.execute(counted, [files]).fetchone()
    return _digest(row)


def _read(workload: Workload, stream: Stream) -> str:
    """The rows of a stream in DuckDB's SQL."""
    files = f"'{workload.path(stream)}/*.{workload.ending}'"
    if workload.ending == "parquet":
        return f"read_parquet({files})"
    if workload.form == "json":
        return f"(SELECT * REPLACE (CAST(ts AS TIMESTAMPTZ) AS ts) FROM read_json({files}))"
    columns = ", ".join(f"'{name}': 'BIGINT'" for name in ("ts", *(column.name for column in stream.columns), "p"))
    read = f"read_csv({files}, header=false, columns={{{columns}}})"
    return f"(SELECT * REPLACE (make_timestamp(1000 * ts) AS ts) FROM {read})"


def batch_sql(workload: Workload, sources: Sequence[str]) -> str:
    """The join as one batch in DuckDB's SQL, each stream read from the source given for it.

    Time buckets as wide as the window let the hash join see the window: two times at most W apart lie in buckets at
    most one apart, so each later relation is read three times, once per neighbouring bucket of the first.
    """
    first, *others = range(len(workload.streams))
    timed = [f"(SELECT epoch_us(ts) AS t, * FROM {source})" for source in sources]
    clauses = [f"FROM (SELECT t // {workload.window} AS bucket, * FROM {timed[first]}) r{first}"]
    for i in others:
        shifted = (f"SELECT t // {workload.window} + {shift} AS bucket, * FROM {timed[i]}" for shift in (-1, 0, 1))
        on = [f"r{i}.bucket = r{first}.bucket"]
        on += [
            f"r{e.left}.{e.left_key} = r{e.right}.{e.right_key}"
            for e in workload.equalities
            if max(e.left, e.right) == i
        ]
        on += [f"abs(r{i}.t - r{j}.t) <= {workload.window}" for j in range(i)]
        on += [
            f"abs(r{b.left}.{b.left_column} - r{b.right}.{b.right_column}) <= {b.width}"
            for b in workload.bands
            if max(b.left, b.right) == i
        ]
        clauses.append(f"JOIN ({' UNION ALL '.join(shifted)}) r{i} ON {' AND '.join(on)}")
    outputs = ", ".join(f"r{i}.{column} AS {column}{i}" for i, column in workload.outputs)
    return f"SELECT {outputs} {' '.join(clauses)}"


def digest_of(table: pa.Table) -> Digest:
    """The digest of results held in memory."""
    numbers = (pc.utf8_length(column) if pa.types.is_string(column.type) else column for column in table.columns)
    sums = (pc.sum(column).as_py() or 0 for column in numbers)
    return Digest(table.num_rows, tuple(sums))


def _digest(row: tuple[int, ...] | None) -> Digest:
    assert row is not None
    return Digest(row[0], tuple(row[1:]))


def _digest_columns(workload: Workload) -> str:
    numbers = (
        f"p{i}" if (i, column) not in workload.shown else f"length({column}{i})" for i, column in workload.outputs
    )
    sums = ", ".join(f"coalesce(sum({number}), 0)::BIGINT" for number in numbers)
    return f"SELECT count(*), {sums}"
