"""A query changes at a restart and takes over the rows of its checkpoint: both versions are exact.

The old version has given the answer over the rows until then. The new one gives exactly the results that are not older
than the announced time. A change that is refused leaves the checkpoint to the old version.
"""

from __future__ import annotations

import tempfile
from functools import partial

import pyarrow as pa
from hypothesis import event, given, settings
from hypothesis import strategies as st

from anabranch.errors import ForeignCheckpoint
from anabranch.plan.query_set import ALONE, alone, partitioning_of, together
from anabranch.run.evolving import Evolve, follow
from anabranch.run.results import ResultLayout
from anabranch.run.store import Store
from tests.oracle.test_coming_and_going import _check, _host_with, _of_every_kind
from tests.support.outer_queries import drawn_tables, with_tables
from tests.support.strategies import arrivals, batch_cuts


@settings(max_examples=2 * settings().max_examples)
@given(data=st.data(), count=st.integers(2, 4), named=st.booleans())
def test_a_changed_query_is_exact_from_the_announced_time_on(data: st.DataObject, count: int, named: bool) -> None:
    rows = data.draw(arrivals(2, most_rows=16, mostly_dense=True), "rows")
    beside = data.draw(drawn_tables(1), "tables")
    catalog = with_tables(rows.catalog, beside)
    versions = list(_of_every_kind(data, catalog, count).values())
    name = "q" if named else ALONE
    sets = [together({name: query}) if named else alone(query) for query in versions]
    make = _host_with(beside)
    current, since, found = 0, None, list[pa.Table]()
    batches = data.draw(batch_cuts(rows, least=4), "batches")
    with tempfile.TemporaryDirectory() as folder:
        host = make(data, sets[current], folder)
        for number, batch in enumerate(batches):
            if number and data.draw(st.booleans(), "restart"):
                wanted = data.draw(st.integers(0, len(versions) - 1), "version")
                slots = data.draw(st.integers(1, 3), "slots")
                table = partial(partitioning_of, sets[wanted], slots)
                try:
                    change = follow(Store(folder), sets[wanted], catalog, table, Evolve.ALLOW)
                except ForeignCheckpoint as error:
                    event(f"refused: {(error.detail or '')[:40]}")
                    change = None
                if change is not None:
                    event("changed")
                    _check(versions[current], rows, batches[:number], since, found, beside)
                    current, since, found = wanted, change.joined[name], []
                host = make(data, sets[current], folder)
            mine = {stream: each for stream, each in batch.items() if stream in sets[current].streams}
            found += [
                each for query, each in ResultLayout(host.queries).split(host.step(mine)).items() if query == name
            ]
        _check(versions[current], rows, batches, since, found, beside)
