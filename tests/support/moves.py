"""Draws moves of partition groups in the host of a test: no move may change an answer."""

from __future__ import annotations

from random import Random

from hypothesis import event
from hypothesis import strategies as st

from anabranch.adapt.balancing import Balance
from anabranch.adapt.course import STRATEGIES
from anabranch.adapt.facts import Interval
from anabranch.errors import PlanError
from anabranch.plan.slots import SlotRange
from anabranch.run.local import LocalHost
from anabranch.stats.report import SlotReport
from tests.support.loads import SlotCpu
from tests.support.strategies import tables

SLOTS: st.SearchStrategy[int | SlotRange] = st.sampled_from([1, 2, 3, SlotRange(1, 3), SlotRange(2, 4)])
"""Numbers of slots to start a host with."""

RESTLESS = Balance("auto", ratio=1.0, seconds=0.0, bytes=0.0, remember=1, cool_down=Interval(batches=1))
"""A query that moves groups, splits keys and changes its slots by itself whenever loads differ at all."""
BALANCES: st.SearchStrategy[Balance | None] = st.sampled_from([None, RESTLESS])


def drawn_loads(seed: int) -> SlotCpu:
    """CPU times that differ by slot and batch: between zero and two seconds per second."""

    def cpu(batch: int, slot: int, report: SlotReport) -> float:
        return Random(f"{seed} {batch} {slot}").choice([0.0, 0.1, 0.5, 2.0])

    return cpu


def draw_move(data: st.DataObject, host: LocalHost) -> None:
    """Requests a random move from a host, or none; a refused move leaves the table unchanged.

    A move is another table or grid (at once, spread or on parallel tracks), another number of slots, or a rebalancing.
    """
    before = host.partitioning
    try:
        match data.draw(st.sampled_from(["", "table", "table", "scale", "rebalance"]), "moves"):
            case "table":
                strategy = data.draw(st.sampled_from(STRATEGIES), "strategy of the move")
                most = data.draw(st.sampled_from([None, None, 1, 5]), "most rows")
                host.spread(data.draw(tables(before, host.queries.uncut), "table"), strategy, most)
                event(f"move: {strategy}{'' if most is None else ', spread'}")
            case "scale":
                host.scale(data.draw(st.integers(1, before.slots), "slots in use"))
                event("move: scale")
            case "rebalance":
                host.rebalance()
    except PlanError as error:
        event(f"move refused: {error.message}")
        assert host.partitioning == before
