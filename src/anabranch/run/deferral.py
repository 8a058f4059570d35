"""Moving a filter: the checkpoint of queries becomes that of the same queries with other late filters.

A filter of one relation is evaluated by Spark before rows are sent, or, if it is *late*, by the joins. Which of the two
decides which rows are kept, and with which columns. Two moves lead from one to the other (Zhu 2006, Section 13.1):

- *Push down*: rows that the joins would have rejected must not stay, because nobody checks them any more. They are
  filtered once (state filtering).
- *Pull up*: rows that Spark has rejected are not there, and need not be: the joins would reject them. Those that are
  there are copied as they are. They lack the columns that only the filter reads, and get values with which it passes
  (`stand_ins`).

Invariant: the answer does not depend on where a filter is evaluated, nor on when that changes.

Limit: of queries that run together none may come or go by the same restart; that is for a running set (`changing`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anabranch.errors import BundleError, ForeignCheckpoint
from anabranch.plan.query_set import QuerySet
from anabranch.run.changing import change_set
from anabranch.run.lease import Lease
from anabranch.run.store import Store


def follow_late_filters(store: Store, queries: QuerySet, compiled: Callable[[Sequence[str]], QuerySet]) -> bool:
    """Makes a checkpoint that was written with other late filters one of these queries; True if it was one.

    `compiled` compiles the same queries with some late filters, as a set of queries names them (`late_filters`). A
    checkpoint of other queries is left as it is.
    """
    found = store.metadata()
    if found is None or found.get("query") != queries.text:
        return False
    before = found.get("late_filters", [])
    if before == list(queries.late_filters):
        return False
    old = compiled(before)
    if old.fingerprint != found.get("fingerprint"):
        return False
    lease = Lease(store)
    try:
        manifest = store.latest()
        if manifest is None:
            store.belong_to(queries)
        else:
            change_set(store, old, queries, manifest.partitionings[-1])
    except BundleError as error:
        raise ForeignCheckpoint(
            f"checkpoint '{store.location}' cannot be used with other late filters",
            detail=f"{error.message}: its rows lack columns, and no value is known with which the filter passes",
            hint=f"write late_filters: {before}, or start with an empty checkpoint folder",
        ) from error
    finally:
        lease.close()
    return True
