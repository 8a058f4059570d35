"""The command `anabranch adopt`: a spec continues from the checkpoint of a Spark query with a stream-stream inner join.

The rows of Spark's state become the first batch of a new checkpoint. The in-process host runs this batch, whose results
Spark has already delivered. Spark's part of the new checkpoint continues at the offsets of the old one.

Invariant: nothing is written before everything has been checked, and the old checkpoint is only read. Limit: the state
does not contain the join condition, so the user must ensure that both queries have the same meaning.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from rich.console import Console

from anabranch.errors import CheckpointError
from anabranch.lang.expr import columns, conjuncts
from anabranch.lang.schema import Field
from anabranch.lang.window import instant_text
from anabranch.plan.physical import mjoin
from anabranch.plan.query import Query
from anabranch.plan.query_set import ALONE, QuerySet, alone
from anabranch.run.clock import Clocks
from anabranch.run.ingest import columns_to_read
from anabranch.run.local import LocalHost
from anabranch.run.placeholders import placeholders_for
from anabranch.run.store import Store
from anabranch.settings.commands import add_command
from anabranch.spec.options import add_spec, spec_of
from anabranch.spec.run_command import prepared

if TYPE_CHECKING:
    from anabranch.api.run import Run
    from anabranch.settings.commands import Commands
    from anabranch.spark.join_state import JoinState


def add_arguments(commands: Commands) -> None:
    """Adds the command."""
    command = add_command(
        commands,
        "adopt",
        "continue from the checkpoint of a stopped Spark query with a stream-stream inner join",
        """
        anabranch adopt spark-checkpoint query.yaml --check     say what would be adopted, or what cannot be
        anabranch adopt spark-checkpoint query.yaml             write the checkpoint that query.yaml names
        anabranch run query.yaml                                go on

        The first relation in FROM is the left side of the Spark join. The sink must be a new place: a folder that
        Spark's file sink has written has a log of its own.
        """,
    )
    command.add_argument("of", metavar="SPARK_CHECKPOINT", help="the checkpointLocation of the Spark query")
    add_spec(command)
    command.add_argument("--check", action="store_true", help="check only; write nothing")
    command.set_defaults(run=adopt)


def adopt(arguments: argparse.Namespace) -> int:
    """Adopts a checkpoint of Spark, or prints the reason why this is impossible."""
    chosen = spec_of(arguments)
    store = Store(chosen.checkpoint)
    if store.metadata() is not None:
        raise CheckpointError(
            f"'{store.location}' is already a checkpoint", hint="name a new folder under 'checkpoint' in the spec"
        )
    with prepared(chosen, Console(stderr=True)) as run:
        # Imported here because it needs pyspark, which --help must not.
        from anabranch.spark.join_state import SIDES, open_join, rows_of, write_logs

        place = arguments.of if "://" in arguments.of else str(Path(arguments.of).absolute())
        query = _adoptable(run)
        state = open_join(run.spark, place)
        sides = dict(zip((each.stream for each in query.graph.relations), SIDES, strict=True))
        rows = {
            stream: _fitting(query, stream, rows_of(run.spark, state, side), place) for stream, side in sides.items()
        }
        print(_summary(state, rows))
        if arguments.check:
            return 0
        _write_state(store, query, rows, state.watermark, run.queries)
        names = list(sides)
        write_logs(
            state,
            store.files,
            f"{store.root.removesuffix('/anabranch')}/spark",
            [names.index(stream) for stream in alone(query).streams],
            0,
        )
    print(f"wrote '{store.location}'; continue with: anabranch run {arguments.spec}")
    return 0


def _adoptable(run: Run) -> Query:
    """Returns the query of a run if it may equal a Spark join of two streams."""
    members = run.queries.members
    query = members[0].query
    reasons = {
        "it is one of several queries": len(members) > 1 or members[0].name != ALONE,
        "it has groups": query.grouping is not None,
        "it has outer, semi or anti joins": bool(query.sides),
        "it does not join two different streams": len(set(run.queries.streams)) != 2 or len(query.graph.relations) != 2,
        "it has windows of rows": bool(query.graph.counted),
    }
    for reason, holds in reasons.items():
        if holds:
            raise CheckpointError(
                "the query cannot continue from a checkpoint of Spark",
                detail=reason,
                hint="an inner join of two streams can; start other queries with an empty checkpoint folder",
            )
    return query


def _fitting(query: Query, stream: str, rows: pa.Table, place: str) -> pa.Table:
    """Returns rows of Spark's state as rows of a stream; columns that only filters read get values that pass the
    filters.
    """
    wanted = columns_to_read(alone(query))[stream]
    relation = next(each for each in query.graph.relations if each.stream == stream)
    keys = [key.expression(relation.name) for key in query.graph.keys_of([relation.name])]
    used = {relation.event_time, *relation.schema.names, *(column.name for key in keys for column in columns(key))}
    lacking = [Field(name, kind) for name, kind in wanted.items() if name not in rows.column_names]
    missing = sorted(field.name for field in lacking if field.name in used)
    tests = () if relation.filter is None else conjuncts(relation.filter)
    values = None if missing else placeholders_for(lacking, tests)
    if values is None:
        raise CheckpointError(
            f"Spark's checkpoint '{place}' cannot be adopted",
            detail=f"its rows of '{stream}' have no column '{(missing or [lacking[0].name])[0]}'; "
            f"they have {', '.join(rows.column_names)}",
            hint="use only columns that the Spark query used; the first relation in FROM is its left side",
        )
    for name, value in values.items():
        rows = rows.append_column(name, pa.repeat(value, len(rows)))
    return pa.table({name: rows[name].cast(kind) for name, kind in wanted.items()})


def _write_state(store: Store, query: Query, rows: Mapping[str, pa.Table], watermark: int, queries: QuerySet) -> None:
    LocalHost(queries, mjoin(query.graph.names), checkpoint=store.location).step(rows)
    manifest = store.latest()
    assert manifest is not None
    # Spark has dropped rows below its watermark, so no such row may arrive any more.
    disorder = {each.stream: each.disorder for each in query.graph.relations}
    clocks = {
        name: replace(
            clock, floor=max(clock.floor, watermark), newest=max(clock.newest or 0, watermark + disorder[name])
        )
        for name, clock in manifest.clocks.streams.items()
    }
    store.commit(replace(manifest, clocks=Clocks(clocks)))


def _summary(state: JoinState, rows: Mapping[str, pa.Table]) -> str:
    counts = ", ".join(f"{len(table):,} rows of {stream}" for stream, table in rows.items())
    return (
        f"Spark's batch {state.batch}, watermark {instant_text(state.watermark)}: {counts}\n"
        "the query must be the one that Spark ran: with wider windows, or without one of its conditions, results that "
        "need rows which Spark has dropped would be missing"
    )
