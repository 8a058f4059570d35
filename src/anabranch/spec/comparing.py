"""Compares the versions of a query that a branch runs: their results as multisets, and their work.

Invariant: only columns that both versions have are compared, and only committed batches. Limit: all results are read
into memory, and nested values are compared by their texts.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
from pyarrow import parquet

from anabranch.lang.sizes import size_text
from anabranch.lang.window import instant_text
from anabranch.plan.query import titled
from anabranch.run.branching import ENTRY, Pair, branch_of, pairs_of
from anabranch.run.store import Store

if TYPE_CHECKING:
    from anabranch.api import QueryHandle

_EXAMPLES = 5
"""The maximum number of differing rows that are shown of each version."""
_COUNT = "+count"


def results_folder(location: str, name: str) -> str:
    """Returns the folder in which a branch keeps the results of a query."""
    return posixpath.join(location, "branch", name)


@dataclass(frozen=True)
class Difference:
    """The difference between the results of two versions of a query, on the columns that both have."""

    columns: tuple[str, ...]
    before: int
    after: int
    only_before: pa.Table
    """Distinct rows with the number of times that the new version lacks them, under `+count`."""
    only_after: pa.Table


def difference(before: pa.Table, after: pa.Table) -> Difference:
    """Compares two results as multisets."""
    common = tuple(name for name in before.column_names if name in after.column_names)
    marked = [
        _plain(table.select(common)).append_column(_COUNT, pa.array([sign] * len(table), pa.int64()))
        for table, sign in ((before, 1), (after, -1))
    ]
    whole = pa.concat_tables(marked, promote_options="permissive")
    counted = (
        whole.group_by(list(common), use_threads=False).aggregate([(_COUNT, "sum")]).rename_columns([*common, _COUNT])
    )
    counts = counted[_COUNT].to_numpy()
    counted = counted.set_column(len(common), _COUNT, pa.array(np.abs(counts)))
    return Difference(
        common, len(before), len(after), counted.filter(pa.array(counts > 0)), counted.filter(pa.array(counts < 0))
    )


def _plain(table: pa.Table) -> pa.Table:
    """Returns a table whose columns can be group keys; nested values become texts."""
    for number, field in enumerate(table.schema):
        if pa.types.is_nested(field.type):
            texts = pa.array([None if value is None else repr(value) for value in table[field.name].to_pylist()])
            table = table.set_column(number, field.name, texts.cast(pa.string()))
    return table


def comparison(store: Store) -> str:
    """Returns the difference in results and cost between both versions of each query so far."""
    entry, manifest = branch_of(store) or {}, store.latest(is_used=False)
    last = -1 if manifest is None else manifest.batch
    lines = []
    for pair in pairs_of(entry):
        found = difference(_results(store, pair.before, last), _results(store, pair.after, last))
        lines += described(pair, found)
    newest = manifest.clocks.newest if manifest else None
    lines += reach(entry.get("since"), newest)
    lines += _costs(store)
    return "\n".join(lines)


def reach(since: int | None, newest: int | None) -> list[str]:
    """Returns a line that says when results can be compared, if no row is as new as that."""
    if since is None or newest is None or newest >= since:
        return []
    return [
        f"results are compared from event time {instant_text(since)} on; the newest row is of {instant_text(newest)}"
    ]


def described(pair: Pair, found: Difference) -> list[str]:
    """Returns lines that describe a difference."""
    if not found.before and not found.after:
        return [f"{titled(pair.name)}: no results before, none after"]
    gone, come = (int(table[_COUNT].to_numpy().sum()) for table in (found.only_before, found.only_after))
    head = f"{titled(pair.name)}: {found.before:,} results before, {found.after:,} after; "
    equal = f"{found.before - gone:,} equal in {', '.join(found.columns) or 'no column'}"
    lines = [f"{head}{equal}, {gone:,} only before, {come:,} only after"]
    for label, table in (("before", found.only_before), ("after", found.only_after)):
        for row in table.slice(0, _EXAMPLES).to_pylist():
            times = row.pop(_COUNT)
            values = ", ".join(f"{name}={value}" for name, value in row.items())
            lines.append(f"  only {label}: {values}{f'  ({times} times)' if times > 1 else ''}")
    return lines


def _results(store: Store, name: str, last: int) -> pa.Table:
    """Reads the results of a query up to a batch."""
    folder = results_folder(store.root.removesuffix("/anabranch"), name)
    listed = store.files.get_file_info(pafs.FileSelector(folder, allow_not_found=True))
    files = [info.path for info in listed if info.base_name.startswith("part-")]
    tables = [
        parquet.read_table(path, filesystem=store.files)
        for path in files
        if int(posixpath.basename(path).split("-")[1]) <= last
    ]
    return pa.concat_tables(tables) if tables else pa.table({})


def note_costs(store: Store, handle: QueryHandle) -> None:
    """Adds the work of the latest batches to the entry of the branch, because older progress is not kept."""
    seconds, sizes, rows = Counter[str](), dict[str, int](), 0
    batches = [progress["adaptive"] for progress in handle.recentProgress if progress["adaptive"] is not None]
    # The first batch loads kernels.
    for ours in batches[1:]:
        rows += sum(ours["rowsIn"].values())
        for name, query in ours["queries"].items():
            seconds[name] += sum(query["statistics"]["seconds"].values())
            sizes[name] = sum(state["bytes"] for state in query["statistics"]["states"])
    if (entry := branch_of(store)) is not None and rows:
        costs = {name: {"seconds": seconds[name], "bytes": size, "rows": rows} for name, size in sizes.items()}
        store.note_metadata(**{ENTRY: {**entry, "costs": costs}})


def _costs(store: Store) -> list[str]:
    """Returns lines that describe the work of each query in the batches of the last run of the branch."""
    costs: Mapping[str, Mapping[str, float]] = (branch_of(store) or {}).get("costs", {})
    return [
        f"{name}: {1e6 * cost['seconds'] / cost['rows']:,.2f} s of the engine per million rows, "
        f"{size_text(cost['bytes'])} of state"
        for name, cost in costs.items()
    ]
