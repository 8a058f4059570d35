"""Changes a running set of queries: adds and removes queries between two batches.

The base rows in the checkpoint are converted from the old set to the new one: to its relations, codes, layout and grid.
A new manifest of the last batch commits the change atomically: before it the old set applies, after it the new one.

A new query answers from an event time on (`since`): it emits exactly those of its results that are not older. No row of
that time or newer has arrived before the change. The manifest has the event time from which each relation is
*complete*, so that all its rows are present with the values of all columns. This follows from the rows that the old set
may have dropped (`engine.expiry`) and from earlier changes. `since` is the first time after the newest row at which the
windows contain no rows from before the relations were complete. Older rows get placeholders for missing columns
(`run/placeholders`); no new query uses a placeholder as a value, because its relations are complete only after them.

Invariant: the results of the other queries do not depend on the change, because their rows are kept and their groups
are rebuilt from them. Limit: all live rows pass through the driver. A new query can read only streams of the set,
because Spark cannot add a source to a query with a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from anabranch.engine.batch import RelationBatch, joined
from anabranch.engine.evaluate.codes import combine_codes, key_codes
from anabranch.engine.evaluate.expression import ColumnLookup, evaluate, evaluate_mask
from anabranch.engine.expiry import kept_from, spares
from anabranch.engine.kernels import Int64Array
from anabranch.engine.ownership import needed_in
from anabranch.errors import BundleError
from anabranch.functions import below_casts, bind_call
from anabranch.lang.expr import Column, Expr, columns, conjunction, conjuncts
from anabranch.lang.window import BEFORE_ALL, FOREVER, instant_text
from anabranch.plan.join_graph import JoinGraph, Relation
from anabranch.plan.partitioning import Partitioning, row_code
from anabranch.plan.query import titled
from anabranch.plan.query_set import Member, QuerySet
from anabranch.run.clock import Clocks
from anabranch.run.floors import relation_floors
from anabranch.run.manifest import Manifest, RowFile
from anabranch.run.placeholders import placeholders_for
from anabranch.run.prefilter import demands
from anabranch.run.row_ownership import first_slots, kept_rows
from anabranch.run.store import Store, new_attempt, rows_name
from anabranch.run.tables import read_columns
from anabranch.run.wire import WireLayout, wire_layout
from anabranch.stats.report import SlotReport


@dataclass(frozen=True)
class SetChange:
    """The queries that were added, with the event time from which they answer, and the queries that were removed."""

    joined: Mapping[str, int | None] = field(default_factory=dict)
    """The event time in microseconds; None if no row had arrived, so that the answer is complete."""
    left: tuple[str, ...] = ()


def refuse_change(old: QuerySet, new: QuerySet, manifest: Manifest | None = None) -> None:
    """Refuses an impossible change, before anything is modified.

    `manifest` is the latest manifest of the old set; without it, earlier changes are unknown.
    """
    if manifest is not None and manifest.until:
        raise BundleError(
            "a branch takes over from these queries, so they can no longer change",
            detail=f"they answer until event time {instant_text(max(manifest.until.values()))}",
            hint="change the query that takes over",
        )
    if unknown := [name for name in new.streams if name not in old.streams]:
        readers = [each.name for each in new.members if unknown[0] in each.query.whole.streams]
        raise BundleError(
            f"{titled(readers[0])} reads stream '{unknown[0]}', which the running queries do not read",
            detail=f"they read {', '.join(old.streams)}; Spark cannot add a source to a query that has a checkpoint",
            hint="start it on its own, or start all queries again with a new checkpoint",
        )
    if counting := [*(set(old.graph.counted) ^ set(new.graph.counted))]:
        counted = min(counting)
        reader = next(each for each in (*old.members, *new.members) if counted in each.query.whole.names)
        raise BundleError(
            f"{titled(reader.name)} has a count window over '{counted}' and can be neither added nor removed",
            detail="a count window buffers rows until the watermark and counts rows that other queries have dropped",
            hint="start all queries again with a new checkpoint",
        )
    before = {each.name: each for each in old.members}
    for each in new.members:
        known = before.get(each.name)
        if known is not None and known.query.text != each.query.text:
            raise BundleError(
                f"query '{each.name}' has another text in the running set",
                detail=f"the running query is: {known.query.text}",
                hint="remove the running query first, or use another name",
            )
    for table in set(new.graph.tables) & set(old.graph.tables):
        if lacking := set(read_columns(new.graph, table)) - set(read_columns(old.graph, table)):
            raise BundleError(
                f"column '{min(lacking)}' of table '{table}' is not read by the running queries",
                detail="the copy of the table in the checkpoint lacks this column",
                hint="start the query on its own, or register the table under another name for it",
            )
    for relation in new.graph.streamed:
        same = _same(old.graph, relation)
        if same is not None and _placeholders(relation, same, old, new) is None:
            tests = " AND ".join(map(str, _passed_before(relation, same, old, new)))
            raise BundleError(
                f"rows of '{relation.name}' lack columns that the running queries would have to test",
                detail=f"all running queries have the filter {tests}, and the added query does not",
                hint=f"give '{relation.name}' another alias in the added query, or the same filter",
            )
    for name, time in promised(old, new, manifest)[0].items():
        if name not in before and time >= FOREVER:
            raise BundleError(
                f"{titled(name)} has an unbounded window over rows that the running queries have dropped",
                detail="its answer would never be complete",
                hint="start it on its own, from the first row on",
            )


def change_set(store: Store, old: QuerySet, new: QuerySet, table: Partitioning) -> SetChange:
    """Converts the checkpoint of a stopped set of queries to another set."""
    manifest = store.latest()
    refuse_change(old, new, manifest)
    arrivals = [each for each in new.members if each.name not in old.names]
    left = tuple(each.name for each in old.members if each.name not in new.names)
    if manifest is None:
        store.belong_to(new)
        return SetChange({each.name: None for each in arrivals}, left)
    rows = _rows(store, old, manifest)
    layout = wire_layout(new, table)
    carried = {each.name: _carried(each, old, layout, rows, manifest.complete) for each in new.graph.streamed}
    since, complete = ({}, {}) if manifest.clocks.newest is None else promised(old, new, manifest)
    attempt = new_attempt()
    files = []
    for slot in table.working:
        mine = {name: _part(table, name, batch, slot) for name, batch in carried.items()}
        count = sum(len(batch) for batch in mine.values())
        if count:
            file = rows_name(manifest.batch, slot, attempt)
            store.write_rows(file, layout.join(mine), SlotReport())
            youngest = {name: int(batch.times.max()) for name, batch in mine.items() if len(batch)}
            files.append(RowFile(file, manifest.batch, slot, count, youngest, 0))
    clocks = Clocks({name: manifest.clocks.streams[name] for name in new.streams})
    staying = {each.name for each in _staying(old, new)}
    plans = {name: text for name, text in manifest.plans.items() if name in staying}
    renumbered = renumbered_predicates(old, new)
    plans = {name: text for name, text in plans.items() if name not in renumbered or "#" not in text}
    versions = {name: file for name, file in manifest.tables.items() if name in new.graph.tables}
    changed = Manifest(
        manifest.batch, attempt, clocks, tuple(files), (table,), plans, versions, since, new.fingerprint, complete
    )
    changed = replace(changed, pieces=manifest.pieces)
    store.commit(changed)
    store.belong_to(new)
    store.collect((changed,))
    store.keep_tables(new.graph.tables)
    return SetChange({each.name: since.get(each.name) for each in arrivals}, left)


def renumbered_predicates(old: QuerySet, new: QuerySet) -> frozenset[str]:
    """Returns the remaining queries whose late filters changed, so that their predicates are numbered differently."""
    before = {each.name: each.query.late_filters for each in old.members}
    return frozenset(
        each.name for each in new.members if before.get(each.name, each.query.late_filters) != each.query.late_filters
    )


def _passed_before(relation: Relation, known: Relation, old: QuerySet, new: QuerySet) -> list[Expr]:
    """Returns conditions that kept rows passed on arrival and that remaining queries test themselves from now on."""
    if known.filter is None or not any(relation.name in each.query.whole.names for each in _staying(old, new)):
        return []
    tested = () if relation.filter is None else conjuncts(relation.filter)
    return [part for part in conjuncts(known.filter) if part not in tested]


def _staying(old: QuerySet, new: QuerySet) -> list[Member]:
    return [each for each in new.members if each.name in old.names]


def _placeholders(relation: Relation, known: Relation, old: QuerySet, new: QuerySet) -> Mapping[str, pa.Scalar] | None:
    """Returns placeholders for the columns that rows from before the change lack; None if there are none.

    Placeholders satisfy all conditions that rows have passed if possible, not only those that are tested from now on,
    because a later change may add tests.
    """
    kept = {field.name for field in known.schema}
    lacking = [field for field in relation.schema if field.name not in kept]
    names = {field.name for field in lacking}
    passed = () if known.filter is None else conjuncts(known.filter)
    found = placeholders_for(lacking, [part for part in passed if _read_by(part) <= names])
    tests = [part for part in _passed_before(relation, known, old, new) if _read_by(part) & names]
    if found is not None and all(_read_by(part) <= names for part in tests):
        return found
    return placeholders_for(lacking, tests)


def _read_by(part: Expr) -> set[str]:
    """Returns the names of the columns that a condition on one relation reads."""
    return {column.name for column in columns(part)}


def _refuse_failing_placeholders(
    part: Expr, relation: Relation, first: int, batch: RelationBatch, read: ColumnLookup
) -> None:
    """Refuses a test that placeholders of an earlier change fail although their rows have passed it.

    Rows with an event time of at least `first` have values of their own.
    """
    if not evaluate_mask(part, read, len(batch))[batch.times < first].all():
        raise BundleError(
            f"rows of '{relation.name}' have placeholders that fail {part}, although the rows passed it",
            detail="an earlier change added these placeholders for missing columns",
            hint="repeat this change when the rows from before the earlier change have expired",
        )


def promised(old: QuerySet, new: QuerySet, manifest: Manifest | None) -> tuple[dict[str, int], dict[str, int]]:
    """Returns the event time from which each query of the new set answers, and from which each relation is complete.

    Queries that answer from the first row on are left out. Without a manifest, and before the first row, times count
    from event time 0.
    """
    newest = None if manifest is None else manifest.clocks.newest
    if manifest is None or newest is None:
        first, since, kept = 0, dict[str, int](), kept_from(old, dict.fromkeys(old.graph.names, 0))
    else:
        first, since = newest + 1, {name: time for name, time in manifest.since.items() if name in new.names}
        kept = kept_from(old, relation_floors(old, manifest.clocks))
        kept = {name: max(time, manifest.complete.get(name, BEFORE_ALL)) for name, time in kept.items()}

    met, demanded = demands(old), demands(new)

    def complete(relation: Relation, asked: tuple[Expr, ...]) -> int:
        """Returns the time from which all rows that pass the conditions are present; rows from `first` on are still to
        come.
        """
        is_there = _is_there(old.graph, new.graph, relation, asked)
        is_there &= met.get(relation.name, frozenset()) <= demanded.get(relation.name, frozenset())
        found = min(kept[relation.name], first) if is_there else first
        return max(found, *(since.get(name, found) for name in relation.producers)) if relation.is_result else found

    arrivals = [each for each in new.members if each.name not in old.names]
    for member in sorted(arrivals, key=lambda each: new.levels[each.name]):
        own, early = {residual.relation: residual for residual in member.residuals}, spares(member.query)
        lag = 0 if member.query.grouping is None else member.query.grouping.lag
        latest = first
        for shared in member.query.whole.streamed:
            residual = own.get(shared.name)
            window, asked = (shared.window, None) if residual is None else (residual.window, residual.filter)
            lost = complete(shared, _filter(shared, asked)) - 1
            # The last event time at which a missing row could be part of a result.
            until = min(window.deadline(lost), shared.window.deadline(lost) - early[shared.name])
            latest = max(latest, max(lost, until) + lag + 1)
        since[member.name] = min(latest, FOREVER)
    return since, {each.name: complete(each, _filter(each, None)) for each in new.graph.streamed}


def _filter(shared: Relation, own: Expr | None) -> tuple[Expr, ...]:
    found = () if shared.filter is None else conjuncts(shared.filter)
    return found if own is None else (*found, *conjuncts(own))


def _is_there(old: JoinGraph, new: JoinGraph, wanted: Relation, asked: tuple[Expr, ...]) -> bool:
    """Returns True if the old set has kept all rows, columns and keys of a relation that a query needs."""
    known = _same(old, wanted)
    if known is None:
        return False
    if known.filter is not None and any(part not in asked for part in conjuncts(known.filter)):
        return False
    # The filter of the old relation was tested on arrival.
    untested = [part for part in asked if known.filter is None or part not in conjuncts(known.filter)]
    read = {field.name for field in wanted.schema} | {column.name for part in untested for column in columns(part)}
    carried = {field.name for field in known.schema}
    if not read <= carried:
        return False
    return all(
        _old_code(old, wanted.name, key.expression(wanted.name)) is not None
        or {column.name for column in columns(key.expression(wanted.name))} <= carried
        for key in new.keys_of([wanted.name])
    )


def _same(graph: JoinGraph, wanted: Relation) -> Relation | None:
    """Returns the relation of that name if it reads the same rows; else None."""
    for relation in graph.relations:
        if relation.name == wanted.name:
            is_same = (relation.stream, relation.producers) == (wanted.stream, wanted.producers)
            return relation if is_same and relation.event_time == wanted.event_time else None
    return None


def _old_code(old: JoinGraph, relation: str, expression: Expr) -> str | None:
    """Returns the name of an expression's code in the old set; None if there is none."""
    if relation not in old.names:
        return None
    return next((key.name for key in old.keys_of([relation]) if key.expression(relation) == expression), None)


def _rows(store: Store, old: QuerySet, manifest: Manifest) -> dict[str, RelationBatch]:
    """Returns all rows of the old set, each once."""
    tables = manifest.partitionings
    last = tables[-1]
    layout = wire_layout(old, *tables)
    found: dict[str, list[RelationBatch]] = {each.name: [layout.empty(each.name)] for each in old.graph.streamed}
    for file in manifest.files:
        for name, batch in layout.split(store.read_rows(file.name)).items():
            if len(batch):
                mine = kept_rows(tables[file.partitioning :], file.slot, name, batch)
                mine &= first_slots(last, name, batch) == file.slot
                found[name].append(batch.take(np.flatnonzero(mine)))
    return {name: joined(several) for name, several in found.items()}


def _carried(
    relation: Relation,
    old: QuerySet,
    layout: WireLayout,
    rows: Mapping[str, RelationBatch],
    complete: Mapping[str, int],
) -> RelationBatch:
    """Returns the rows of a relation of the new set that the old set has kept."""
    known = _same(old.graph, relation)
    stays = {each.name for each in old.members} & set(layout.queries.names)
    readers = [each for each in layout.queries.members if relation.name in each.query.whole.names]
    if known is None:
        return layout.empty(relation.name)
    batch = rows[relation.name]
    carried = {name: batch.payload.column(name) for name in batch.payload.schema.names}
    tested = () if known.filter is None else conjuncts(known.filter)
    rest = () if relation.filter is None else tuple(part for part in conjuncts(relation.filter) if part not in tested)
    # A key that is kept only as a code is a key of all queries, and its NULL rows were never kept.
    keys = [below_casts(key.expression(relation.name)) for key in old.graph.keys_of([relation.name])]
    implied = [bind_call("is_not_null", (key,)) for key in keys]
    rest = tuple(part for part in rest if part not in implied or _read_by(part) <= carried.keys())
    readable = all(column.name in carried for part in rest for column in columns(part))
    if not readable or (not any(each.name in stays for each in readers) and _lacks(relation, layout, old, carried)):
        # Only added queries would read these rows, and they answer from a later time on.
        return layout.empty(relation.name)

    def read(column: Column) -> pa.Array:
        return carried[column.name]

    for part in _passed_before(relation, known, old, layout.queries):
        if _read_by(part) <= carried.keys():
            _refuse_failing_placeholders(part, relation, complete.get(relation.name, BEFORE_ALL), batch, read)
    times = batch.times
    codes = dict(batch.codes)
    if (condition := conjunction(rest)) is not None:
        kept = evaluate_mask(condition, read, len(times))
        carried = {name: values.filter(pa.array(kept)) for name, values in carried.items()}
        times, codes = times[kept], {name: each[kept] for name, each in codes.items()}
    length = len(times)
    placeholders = _placeholders(relation, known, old, layout.queries) or {}
    payload = pa.RecordBatch.from_pydict(
        {
            f.name: carried[f.name] if f.name in carried else _repeated(placeholders.get(f.name), f.type, length)
            for f in relation.schema
        }
    )
    made = {code: _code(code, relation, layout, old.graph, codes, read, times) for code in layout.codes[relation.name]}
    return RelationBatch(times, made, payload)


def _repeated(value: pa.Scalar | None, kind: pa.DataType, length: int) -> pa.Array:
    return pa.nulls(length, kind) if value is None or not value.is_valid else pa.repeat(value, length)


def _lacks(relation: Relation, layout: WireLayout, old: QuerySet, carried: Mapping[str, pa.Array]) -> bool:
    """Returns True if rows of the old set lack a column or a key."""
    keys = [key.expression(relation.name) for key in layout.queries.graph.keys_of([relation.name])]
    unknown = [key for key in keys if _old_code(old.graph, relation.name, key) is None]
    read = {column.name for key in unknown for column in columns(key)} | {field.name for field in relation.schema}
    return not read <= carried.keys()


def _code(
    code: str,
    relation: Relation,
    layout: WireLayout,
    old: JoinGraph,
    codes: Mapping[str, Int64Array],
    read: object,
    times: Int64Array,
) -> Int64Array:
    """Returns the code of rows in the new set: copied, or else computed. Rows without the columns get 0, which matches
    nothing.
    """
    if code == row_code(relation.name):
        return codes[code] if code in codes else combine_codes([times, np.arange(len(times))])
    key = next(each for each in layout.queries.graph.keys_of([relation.name]) if each.name == code)
    expression = key.expression(relation.name)
    known = _old_code(old, relation.name, expression)
    if known is not None:
        return codes[known]
    try:
        values = evaluate(expression, read, len(times))  # type: ignore[arg-type]
    except KeyError:
        return np.zeros(len(times), dtype=np.int64)
    made: Int64Array = key_codes(values, key.type)
    return made


def _part(table: Partitioning, name: str, batch: RelationBatch, slot: int) -> RelationBatch:
    if not len(batch) or table.slots == 1:
        return batch
    return batch.take(np.flatnonzero(needed_in(table, name, batch)[:, slot]))
