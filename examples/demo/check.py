"""The demo's check: the files of a result against the batch answer that DuckDB computes over those of the streams."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import duckdb


@dataclass(frozen=True)
class Check:
    """The result against the batch answer; missing and extra count rows of the multiset difference."""

    results: int
    missing: int
    extra: int

    @property
    def has_passed(self) -> bool:
        return self.missing == 0 and self.extra == 0

    @property
    def verdict(self) -> str:
        """In words, with colours for the terminal."""
        if self.has_passed:
            return "[green]passed[/green]: row for row the batch answer of DuckDB over the same files"
        return f"[red]FAILED[/red]: {self.missing:,} rows missing, {self.extra:,} rows too many"


def compare(streams: Path, names: Iterable[str], answer: str, *results: Path) -> list[Check]:
    """Each of the results, folders of files, against a plain SQL query over the streams, which are folders too."""
    with duckdb.connect() as connection:

        def count(query: str) -> int:
            return int(connection.execute(f"SELECT count(*) FROM ({query})").fetchall()[0][0])

        connection.execute("SET TimeZone = 'UTC'")
        for name in names:
            connection.execute(f"CREATE VIEW {name} AS FROM read_parquet('{_quoted(streams / name)}/*.parquet')")
        connection.execute(f"CREATE TABLE expected AS {answer}")
        columns = ", ".join(str(row[0]) for row in connection.execute("DESCRIBE expected").fetchall())
        expected, checks = f"SELECT {columns} FROM expected", []
        for found in results:
            has_files = any(found.glob("*.parquet"))
            rows = f"read_parquet('{_quoted(found)}/*.parquet')" if has_files else "expected LIMIT 0"
            connection.execute(f"CREATE OR REPLACE TABLE found AS SELECT {columns} FROM {rows}")
            actual = "FROM found"
            missing, extra = f"{expected} EXCEPT ALL {actual}", f"{actual} EXCEPT ALL {expected}"
            checks.append(Check(count(actual), count(missing), count(extra)))
        return checks


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")
