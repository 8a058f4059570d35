"""A changed query runs beside the old one on a copy of its state, and takes over: no result is lost, wrong or twice.

Original and branch cut the same rows into other batches, and the branch may be behind. The original gives exactly its
results before the announced time, and may end as soon as it says that it has; the branch gives those from then on.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping
from functools import partial

import pyarrow as pa
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from anabranch.checkpoint.copying import copy
from anabranch.errors import BundleError, ForeignCheckpoint
from anabranch.plan.query import Query
from anabranch.plan.query_set import ALONE, QuerySet, partitioning_of, set_of, together
from anabranch.run.branching import earliest, finish, has_answered, pairs, split, take_over
from anabranch.run.local import LocalHost
from anabranch.run.results import ResultLayout
from anabranch.run.store import Store
from tests.oracle.test_coming_and_going import _host_with, _of_every_kind
from tests.support.oracle import Answer, comparable, describe_difference, rows_as_multiset, timed_results
from tests.support.outer_queries import drawn_tables, with_tables
from tests.support.strategies import arrivals, batch_cuts

Batch = Mapping[str, pa.Table]


def stepped(host: LocalHost, batches: list[Batch]) -> dict[str, list[pa.Table]]:
    """The results of each query over some batches."""
    found: dict[str, list[pa.Table]] = {name: [] for name in host.queries.names}
    for batch in batches:
        mine = {stream: rows for stream, rows in batch.items() if stream in host.queries.streams}
        for name, rows in ResultLayout(host.queries).split(host.step(mine)).items():
            found[name].append(rows)
    return found


def expected(query: Query, batches: list[Batch], beside: Batch, whole: Batch, first: float, last: float) -> Answer:
    """The results of the rows of some batches, from one event time to another."""
    tables = {
        name: pa.concat_tables([rows.slice(0, 0), *(batch[name] for batch in batches if name in batch)])
        for name, rows in whole.items()
    }
    results = timed_results(query, {**tables, **beside})
    return Counter(tuple(map(comparable, values)) for time, values in results if first <= time < last)


def answer(found: list[pa.Table]) -> Answer:
    return rows_as_multiset(pa.concat_tables(found)) if found else Counter()


@settings(max_examples=settings().max_examples)
@given(data=st.data(), named=st.booleans())
def test_original_and_branch_give_each_result_once(data: st.DataObject, named: bool) -> None:
    rows = data.draw(arrivals(2, most_rows=16, mostly_dense=True), "rows")
    tables = data.draw(drawn_tables(1), "tables")
    versions = list(_of_every_kind(data, with_tables(rows.catalog, tables), 3).values())
    old, new = versions[data.draw(st.integers(0, 3), "old")], versions[data.draw(st.integers(0, 3), "new")]
    assume(old.text != new.text)
    name, make, over = "q" if named else ALONE, _host_with(tables), partial(expected, beside=tables, whole=rows.tables)
    originals, wanted = set_of({name: old}), set_of({name: new})
    batches: list[Batch] = [*data.draw(batch_cuts(rows, least=4), "batches")]
    began, taken = sorted(data.draw(st.integers(1, len(batches) - 1), "batch") for _ in range(2))
    seen = data.draw(st.integers(began, taken), "batches that the branch has had")
    runs_on = data.draw(st.booleans(), "the original runs on")
    with tempfile.TemporaryDirectory() as main, tempfile.TemporaryDirectory() as folder:
        found = stepped(make(data, originals, main), batches[:began])[name]
        copy(main, folder)
        ((pair),) = pairs({name: old.text}, {name: new.text})
        try:
            both = together({pair.after: new, pair.before: old})
            since = split(Store(folder), originals, both, (pair,), _table(data, both), main)
        except (BundleError, ForeignCheckpoint) as error:
            event(f"refused: {getattr(error, 'detail', '')[:40]}")
            return
        first = -float("inf") if since is None else since
        shadow = stepped(make(data, both, folder), batches[began:seen])
        for query, label in ((old, pair.before), (new, pair.after)):
            results = over(query, batches[:seen], first=first, last=float("inf"))
            earlier = over(query, batches[:began], first=first, last=float("inf"))
            if since is not None:
                assert not describe_difference(results - earlier, answer(shadow[label]))
        host = make(data, originals, main)
        found += stepped(host, batches[began:taken])[name]
        time = finish(Store(main), originals, earliest(Store(folder).latest(), since=since))
        take_over(Store(folder), both, wanted, _table(data, wanted), time)
        if runs_on:
            host.round.manifest = Store(main).latest()
        else:
            host = make(data, originals, main)
        for batch in batches[taken:]:
            if has_answered(originals, host.manifest):
                event("the original ended")
                break
            found += stepped(host, [batch])[name]
        event(f"{min(2, len(over(new, batches, first=time, last=float('inf'))))}+ results of the branch")
        assert not describe_difference(over(old, batches, first=-float("inf"), last=time), answer(found))
        later = stepped(make(data, wanted, folder), batches[seen:])[name]
        assert not describe_difference(over(new, batches, first=time, last=float("inf")), answer(later))


def _table(data: st.DataObject, queries: QuerySet) -> partial:  # type: ignore[type-arg]
    return partial(partitioning_of, queries, data.draw(st.integers(1, 3), "slots"))
