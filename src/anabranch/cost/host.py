"""The resources of the host around a plan: Spark's work for triggers, sources, rows and results, and worker memory.

The host's part is the same for all plans of a query, so it does not affect the choice between them. It counts for
limits, which apply to the whole query: a `Budget` subtracts it from the limits of a slot.

    cpu     (trigger + sources x source + slots x slot) / batch     independent of the number of rows
            + rows read x read + copies sent x (row + bytes x byte) + results x result
    memory  of a slot: worker + its rows of one batch x batch_bytes; and for each byte of state `room` bytes of memory

The driver's own memory is measured and shown, but is not part of a slot. An in-process run has no host part.

Limit: results of a grouped query are few and are not counted. A sink other than files may cost more than `result`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Literal, TypeAlias

from anabranch.cost.estimates import WIRE_BYTES, from_statistics
from anabranch.cost.resources import ResourceModel, Resources
from anabranch.errors import StatisticsError
from anabranch.plan.join_graph import Relation
from anabranch.plan.query import Query
from anabranch.stats.view import Provenance, StatisticsView

Length: TypeAlias = Literal["trigger", "measured", "assumed"]
"""The source of the batch interval."""


@dataclass(frozen=True)
class HostCosts:
    """The unit costs of a host: seconds of one core, over all of its processes, and bytes."""

    trigger: float
    """Per trigger."""
    source: float
    """Per trigger and source."""
    slot: float
    """Per trigger and slot."""
    read: float
    """Per row read and filtered."""
    row: float
    """Per row that passes the filter, is sent to a slot, and is kept in the checkpoint."""
    byte: float
    """Per byte of such a row."""
    result: float
    """Per result written to its sink."""
    worker_bytes: float
    """Resident memory of a worker without rows and state."""
    batch_bytes: float
    """Resident bytes of a worker per byte of its rows of a batch."""
    driver_bytes: float = 0.0
    """The driver, Java and Python together; shown, not counted."""
    room: float = 2.0
    """Maximum bytes of memory per byte of live state, because arrays grow by doubling. Follows from the layout."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not 0 <= value < math.inf:
                raise StatisticsError(f"the host's cost '{name}' is {value:g}", hint="run 'anabranch calibrate' again")

    @classmethod
    def from_names(cls, costs: Mapping[str, float]) -> HostCosts:
        """Returns the costs with these names; ignores names from other releases."""
        names = {item.name for item in fields(cls)}
        return cls(**{name: float(value) for name, value in costs.items() if name in names})


SPARK = HostCosts(
    trigger=0.13,
    source=0.025,
    slot=0.018,
    read=3.7e-7,
    row=8.5e-8,
    byte=7.2e-9,
    result=2e-8,
    worker_bytes=1.4e8,
    batch_bytes=3.0,
    driver_bytes=1.1e9,
)
"""A local session of Spark 4.3 on two cores, as `spark_costs` measured it with the engine's built-in unit costs.

The cost of a result is within the error of that measurement: most of it is in the engine's units.
"""


@dataclass(frozen=True)
class Host:
    """The host of a query: its unit costs, and how it runs the query."""

    costs: HostCosts
    provenance: Provenance = "assumed"
    length: Length = "assumed"
    """The source of the batch interval."""
    share: float = 1.0
    """The fraction of a trigger that is charged to the query; queries that run together share it."""


@dataclass(frozen=True)
class RelationNeed:
    """Rates of the rows of one relation, per second."""

    relation: Relation
    read: float
    passing: float
    row_bytes: float
    copies: float


@dataclass(frozen=True)
class HostNeed:
    """The resources of the host for a query in each slot, by part."""

    triggers: float
    """Cores, as the following fields."""
    rows: float
    results: float
    worker: float
    """Bytes, as the following fields."""
    batch_rows: float
    room: float
    """Bytes of memory per byte of state."""
    host: Host
    batch: float
    """Seconds between batches."""
    slots: int
    relations: tuple[RelationNeed, ...]
    rate: float
    """Results written per second, over all slots."""

    @property
    def resources(self) -> Resources:
        return Resources(self.triggers + self.rows + self.results, self.worker + self.batch_rows, 0.0)


def host_need(query: Query, seen: StatisticsView, model: ResourceModel, host: Host, slots: int) -> HostNeed:
    """Returns the host's resources per slot while it runs a query; `model` has the grid, the results and the batch."""
    estimates = from_statistics(query.whole, seen, slide=query.seconds_between_boundaries, pairwise=query.pairwise)
    needs = [
        RelationNeed(
            relation,
            estimates.arriving[position],
            estimates.rates[position],
            estimates.row_bytes[position] + WIRE_BYTES,
            _copies(model, name),
        )
        for position, (name, relation) in enumerate(zip(estimates.names, query.whole.relations, strict=True))
        if not relation.is_table
    ]
    results = 0.0 if query.grouping is not None else model.base.rate
    return need_of(needs, results, host, slots, model.batch)


def need_of(needs: Iterable[RelationNeed], rate: float, host: Host, slots: int, batch: float) -> HostNeed:
    """Returns the host's resources per slot for the rows of some relations, and for `rate` results per second."""
    costs, several = host.costs, tuple(needs)
    read: dict[str, float] = {}
    for each in several:
        if not each.relation.is_result:
            # A stream that is named twice is read once.
            read[each.relation.stream] = max(each.read, read.get(each.relation.stream, 0.0))
    sent = sum(each.passing * each.copies for each in several)
    moved = sum(each.passing * each.copies * each.row_bytes for each in several)
    each_trigger = (costs.trigger + costs.slot * slots) * host.share + costs.source * len(read)
    return HostNeed(
        each_trigger / batch / slots if batch else 0.0,
        (sum(read.values()) * costs.read + sent * costs.row + moved * costs.byte) / slots,
        rate * costs.result / slots,
        costs.worker_bytes,
        moved * batch * costs.batch_bytes / slots,
        costs.room,
        host,
        batch,
        slots,
        several,
        rate,
    )


def need_together(several: Sequence[HostNeed]) -> HostNeed:
    """Returns the host's resources for queries that run together: shared rows are sent once."""
    relations: dict[str, RelationNeed] = {}
    for each in (relation for need in several for relation in need.relations):
        other = relations.get(each.relation.name)
        relations[each.relation.name] = each if other is None or each.passing > other.passing else other
    first = several[0]
    whole = replace(first.host, share=1.0)
    return need_of(relations.values(), sum(each.rate for each in several), whole, first.slots, first.batch)


def _copies(model: ResourceModel, name: str) -> float:
    is_spread = model.partitioning is not None and name in model.estimates.positions
    return model.copies(model.estimates.mask((name,))) if is_spread else 1.0
