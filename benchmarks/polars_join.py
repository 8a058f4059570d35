"""The three-way window join on one key in polars: once as a batch, and as a loop over micro-batches.

The loop is what one writes without a streaming engine: keep the rows of the last window of each stream, and for every
micro-batch re-join them. It comes in two exact forms, and which is faster depends on the window. The figure to reach
speaks of the one that re-joins whole windows; the other joins only what is new and is measured beside it. Polars uses
all cores in either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import polars as pl
import pyarrow as pa

from benchmarks.workloads import EPOCH, Workload

Frames: TypeAlias = list[pl.DataFrame]


def frames(batch: dict[str, pa.Table]) -> Frames:
    """The tables of a micro-batch as frames whose columns carry the number of their relation; times are integers."""
    return [_frame(table, i) for i, table in enumerate(batch.values())]


def batch_join(workload: Workload, streams: Frames) -> pl.DataFrame:
    """All results at once; time buckets as wide as the window keep the hash join from pairing rows of all times.

    Rows within a window of each other lie in the same or in neighbouring buckets, so the later streams are taken three
    times. Key and bucket are one integer, which polars joins faster than two.
    """
    first = streams[0].lazy().with_columns(code=_code(workload, 0, 0))
    near = [
        pl.concat([streams[i].lazy().with_columns(code=_code(workload, i, shift)) for shift in (-1, 0, 1)])
        for i in (1, 2)
    ]
    whole = first.join(near[0], on="code").filter(_within(workload, 0, 1)).join(near[1], on="code")
    return whole.filter(_within(workload, 0, 2), _within(workload, 1, 2)).select("p0", "p1", "p2").collect()


def _code(workload: Workload, i: int, shift: int) -> pl.Expr:
    buckets = workload.span // workload.window + 3
    return pl.col(f"k{i}") * buckets + (pl.col(f"t{i}") - EPOCH) // workload.window + shift + 1


def rejoin(workload: Workload, old: Frames, new: Frames) -> pl.DataFrame:
    """New results by joining whole windows and keeping the combinations with a new row."""
    whole = [pl.concat([before, now]) for before, now in zip(old, new, strict=True)]
    firsts = [_first_row(now, i) for i, now in enumerate(new)]
    is_new = pl.any_horizontal([pl.col(f"p{i}") >= first for i, first in enumerate(firsts)])
    return _join(workload, whole, (0, 1, 2)).filter(is_new).collect()


def rejoin_by_delta(workload: Workload, old: Frames, new: Frames) -> pl.DataFrame:
    """New results as a sum over the first new row: new x all x all, old x new x all, old x old x new."""
    whole = [pl.concat([before, now]) for before, now in zip(old, new, strict=True)]
    parts = [
        _join(workload, [new[0], whole[1], whole[2]], (0, 1, 2)),
        _join(workload, [old[0], new[1], whole[2]], (1, 0, 2)),
        _join(workload, [old[0], old[1], new[2]], (2, 0, 1)),
    ]
    return pl.concat(pl.collect_all(parts))


Form: TypeAlias = Callable[[Workload, Frames, Frames], pl.DataFrame]
FORMS: dict[str, Form] = {"whole": rejoin, "delta": rejoin_by_delta}


def advance(workload: Workload, old: Frames, new: Frames) -> Frames:
    """The rows that a later micro-batch can still need: within the window of the newest row of the slowest stream."""
    reached = min(_last_time(now, i) for i, now in enumerate(new))
    return [
        pl.concat([before, now]).filter(pl.col(f"t{i}") >= reached - workload.window)
        for i, (before, now) in enumerate(zip(old, new, strict=True))
    ]


def no_rows() -> Frames:
    return [pl.DataFrame(schema={f"t{i}": pl.Int64, f"k{i}": pl.Int64, f"p{i}": pl.Int64}) for i in range(3)]


def _join(workload: Workload, streams: Frames, order: tuple[int, int, int]) -> pl.LazyFrame:
    a, b, c = order
    pairs = streams[a].lazy().join(streams[b].lazy(), left_on=f"k{a}", right_on=f"k{b}").filter(_within(workload, a, b))
    whole = pairs.join(streams[c].lazy(), left_on=f"k{a}", right_on=f"k{c}")
    return whole.filter(_within(workload, a, c), _within(workload, b, c)).select("p0", "p1", "p2")


def _within(workload: Workload, i: int, j: int) -> pl.Expr:
    return (pl.col(f"t{i}") - pl.col(f"t{j}")).abs() <= workload.window


def _first_row(frame: pl.DataFrame, i: int) -> int:
    """The least row number of a frame; one that no row reaches when it is empty."""
    least = frame[f"p{i}"].min()
    return int(least) if isinstance(least, int) else 2**62


def _last_time(frame: pl.DataFrame, i: int) -> int:
    """The greatest time of a frame; one that drops nothing when it is empty."""
    greatest = frame[f"t{i}"].max()
    return int(greatest) if isinstance(greatest, int) else 0


def _frame(table: pa.Table, i: int) -> pl.DataFrame:
    columns = [table["ts"].cast(pa.int64()), table["k"], table["p"]]
    frame = pl.from_arrow(pa.table(columns, names=[f"t{i}", f"k{i}", f"p{i}"]))
    assert isinstance(frame, pl.DataFrame)
    return frame
