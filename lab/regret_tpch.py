"""Rows of TPC-H as streams: orders, shipments and receipts by date, beside tables of customers, parts and suppliers.

The package `tpchgen-cli` makes the rows, at a tenth of scale factor 1: 150,000 orders and 600,000 line items in seven
years. Sixteen days pass in one batch. A line item is shipped within 121 days of its order and received within 30 days.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from functools import cache, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from anabranch.errors import HostError
from anabranch.lang.schema import TIMESTAMP
from lab.regret_real import RealWorkload, Recorded, in_batches

NAMES = ("orders to receipts", "orders of a brand")
COMMAND = "tpchgen-cli"
SCALE = 0.1
NUMBER, TEXT = pa.int64(), pa.string()
BATCH = 0.1
"""Seconds in which sixteen days pass."""
DAYS = 16
LENGTH = round(BATCH * 1e6)
LINE = pa.schema(
    [("ts", TIMESTAMP), ("orderkey", NUMBER), ("linenumber", NUMBER), ("partkey", NUMBER), ("suppkey", NUMBER)]
)
STREAMS = {
    "orders": pa.schema([("ts", TIMESTAMP), ("orderkey", NUMBER), ("custkey", NUMBER), ("orderpriority", TEXT)]),
    "shipments": LINE,
    "receipts": LINE,
}
SOURCES = {
    "orders": ("orders", "o_", "orderdate"),
    "shipments": ("lineitem", "l_", "shipdate"),
    "receipts": ("lineitem", "l_", "receiptdate"),
}
"""The table, the prefix of its columns and the date by which its rows arrive, of each stream."""
TABLES = {
    "customer": ("c_", ("custkey", "mktsegment")),
    "part": ("p_", ("partkey", "brand")),
    "supplier": ("s_", ("suppkey", "nationkey")),
}


def orders() -> tuple[RealWorkload, ...]:
    """The workloads over orders; none where the generator is not installed."""
    if _command() is None:
        return ()
    received = (
        f"SELECT o.orderpriority AS priority, r.orderkey AS orderkey FROM orders {_days(128)} AS o, "
        f"shipments {_days(32)} AS s, receipts {_days(32)} AS r, customer AS c WHERE o.orderkey = s.orderkey "
        "AND s.orderkey = r.orderkey AND s.linenumber = r.linenumber AND o.custkey = c.custkey "
        "AND c.mktsegment = 'BUILDING'"
    )
    branded = (
        f"SELECT o.orderpriority AS priority, p.partkey AS partkey FROM orders {_days(128)} AS o, "
        f"shipments {_days(32)} AS s, part AS p, supplier AS u WHERE o.orderkey = s.orderkey "
        "AND s.partkey = p.partkey AND s.suppkey = u.suppkey AND p.brand = 'Brand#12' AND u.nationkey < 5"
    )
    why = "three streams and a table: few customers count", "two streams and two tables that most rows do not meet"
    return (
        RealWorkload(NAMES[0], why[0], received, STREAMS, _recorded, BATCH, beside=partial(_tables, "customer")),
        RealWorkload(NAMES[1], why[1], branded, STREAMS, _recorded, BATCH, beside=partial(_tables, "part", "supplier")),
    )


def _days(count: int) -> str:
    return f"[RANGE {count * LENGTH // DAYS} MICROSECONDS]"


def _command() -> str | None:
    beside = Path(sys.executable).with_name(COMMAND)
    return str(beside) if beside.exists() else shutil.which(COMMAND)


@cache
def _generated() -> dict[str, pa.Table]:
    """The tables of TPC-H that are read, with the columns that are."""
    command = _command()
    assert command is not None
    wanted: dict[str, set[str]] = {
        name: {f"{prefix}{column}" for column in columns} for name, (prefix, columns) in TABLES.items()
    }
    for stream, (table, prefix, date) in SOURCES.items():
        columns = {f"{prefix}{name}" for name in (*STREAMS[stream].names[1:], date)}
        wanted[table] = wanted.get(table, set()) | columns
    with tempfile.TemporaryDirectory(prefix="anabranch-lab-") as folder:
        asked = [command, "parquet", "-s", str(SCALE), f"--tables={','.join(wanted)}", f"--output-dir={folder}"]
        made = subprocess.run(asked, capture_output=True, text=True, check=False)
        if made.returncode:
            raise HostError(
                f"'{COMMAND}' could not make the rows of TPC-H",
                detail=made.stderr.strip()[-300:],
                hint="this suite was written for version 4 of it",
            )
        return {
            name: pq.read_table(f"{folder}/{name}.parquet", columns=sorted(needed)) for name, needed in wanted.items()
        }


@cache
def _tables(*names: str) -> dict[str, pa.Table]:
    found = {}
    for name in names:
        prefix, columns = TABLES[name]
        rows = _generated()[name]
        found[name] = pa.table({column: _plain(rows[f"{prefix}{column}"]) for column in columns})
    return found


def _plain(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return whole.cast(NUMBER if pa.types.is_integer(whole.type) else TEXT)


@cache
def _recorded() -> Recorded:
    """The rows of all streams, sixteen days in a batch."""
    days = {
        stream: _generated()[table][f"{prefix}{date}"].combine_chunks().cast(pa.int32()).to_numpy().astype(np.int64)
        for stream, (table, prefix, date) in SOURCES.items()
    }
    first = min(int(each.min()) for each in days.values())
    count = (max(int(each.max()) for each in days.values()) - first) // DAYS + 1
    parts = {}
    for stream, (table, prefix, _) in SOURCES.items():
        rows, schema = _generated()[table], STREAMS[stream]
        columns = {name: _plain(rows[f"{prefix}{name}"]) for name in schema.names[1:]}
        passed = (days[stream] - first) * (LENGTH // DAYS)
        parts[stream] = in_batches(passed, columns, schema, LENGTH, count)
    return [{name: batches[number] for name, batches in parts.items()} for number in range(count)]
