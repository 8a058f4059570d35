"""A resident slot: a long-running task that keeps its engine in its process and takes one batch after another.

The slot connects to the driver and to all other slots. For each order it reads, exchanges packets with the others,
steps, writes and reports, with the functions that Spark's tasks use for micro-batches (`spark/worker`).

Invariant: an engine that did not finish a step is not used again; for the next order it is rebuilt from durable
rows. A slot ends when its driver dies; unfinished files have the name of an attempt that never commits.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from queue import SimpleQueue

import pyarrow as pa

from anabranch.engine.state.columns import to_numpy
from anabranch.errors import AnabranchError, HostError
from anabranch.run.channel import Channel, ChannelClosed, Listener, connect, proved
from anabranch.run.hot import OwnEngines
from anabranch.run.ingest import Ingest
from anabranch.run.slot import SlotTask, drain
from anabranch.spark.exchange import Outlet, StageSequence
from anabranch.spark.locality import slot_keys
from anabranch.spark.resident.messages import (
    Answer,
    BatchOrder,
    Hello,
    Setup,
    SharedUnpickler,
    Turn,
    batches_of,
    stream_of,
)
from anabranch.spark.worker import Reading, cut_function, merge_function, step_function
from anabranch.stats.report import SlotReport


@dataclass(frozen=True)
class Address:
    """The address of the driver and the secret of the run; sent to the tasks pickled."""

    host: str
    port: int
    secret: bytes


class PeerLost(Exception):
    """Another slot has died, so the batch cannot be finished."""


def serve(address: Address, slot: int, turn: Turn) -> None:
    """Serves a slot until the driver closes the connection."""
    with ExitStack() as stack:
        driver = connect(address.host, address.port, address.secret)
        stack.callback(driver.close)
        listener = Listener(driver.own_host)
        stack.callback(listener.close)
        driver.send(pickle.dumps(Hello(slot, turn, listener.host, listener.port, os.getpid())))
        try:
            setup: Setup = pickle.loads(driver.receive())
            peers = Peers.met(slot, setup.slots, listener, address.secret)
            stack.callback(peers.close)
            driver.send(b"")
            work = _Slot(slot, setup.checkpoint, peers)
            orders = SharedUnpickler()
            while True:
                answer = work.answer(orders.loads(driver.receive()))
                driver.send(pickle.dumps(answer))
        except ChannelClosed:
            return


class _Slot:
    """Runs the orders of a slot."""

    def __init__(self, slot: int, checkpoint: str, peers: Peers) -> None:
        self._slot, self._checkpoint, self._peers = slot, checkpoint, peers
        self._engines = OwnEngines()

    def answer(self, order: BatchOrder) -> Answer:
        try:
            return self._done(order)
        except PeerLost:
            return Answer(is_lost=True)
        except AnabranchError as error:
            self._peers.close()
            return Answer(error=error)
        except Exception as error:
            self._peers.close()
            return Answer(error=_named(error, order.task.batch))

    def _done(self, order: BatchOrder) -> Answer:
        task = order.task
        number = task.partitioning.working.index(self._slot)
        reading = Reading(Ingest(task, order.diverted, order.keys), order.reader, self._checkpoint)
        found: list[pa.RecordBatch] = []
        if not order.is_direct:
            found = self._exchanged(task, cut_function(reading)(number, iter(())))
        stages = StageSequence.of(task).work
        steps: list[SlotReport] = []
        merges: list[SlotReport] = []
        for place, (stage, is_merge) in enumerate(stages):
            is_final = place == len(stages) - 1
            outlet = Outlet(task.at(stage), order.writers, place, is_final)
            if is_merge:
                work = merge_function(outlet, self._checkpoint)
            else:
                read = reading if order.is_direct and not place else None
                work = step_function(outlet, self._engines, self._checkpoint, read)
            found, reports = drain(work(number, iter(found)))
            (merges if is_merge else steps).extend(reports)
            if not is_final:
                found = self._exchanged(task, found)
        return Answer(tuple(steps), tuple(merges), stream_of(found))

    def _exchanged(self, task: SlotTask, packets: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Sends every slot its packets; returns those for this slot."""
        working = task.partitioning.working
        to = dict(zip(slot_keys(len(working)), working, strict=True))
        mine: dict[int, list[pa.RecordBatch]] = {slot: [] for slot in working}
        for packet in packets:
            (key,) = to_numpy(packet.column(0)).tolist()
            mine[to[key]].append(packet)
        own = mine.pop(self._slot)
        return [*own, *self._peers.exchange(mine)]


class Peers:
    """The connections of a slot to all others. Each has a receiving thread, so that all slots can send at once."""

    def __init__(self, channels: Mapping[int, Channel]) -> None:
        self._channels = channels
        self._received: dict[int, SimpleQueue[memoryview | None]] = {slot: SimpleQueue() for slot in channels}
        for slot in channels:
            threading.Thread(target=self._receive, args=(slot,), name=f"anabranch-slot-{slot}", daemon=True).start()

    @classmethod
    def met(cls, slot: int, several: Iterable[Hello], listener: Listener, secret: bytes) -> Peers:
        """Connects a slot to those of lower numbers, and accepts those of higher numbers."""
        others = [each for each in several if each.slot != slot]
        channels: dict[int, Channel] = {}
        for each in others:
            if each.slot < slot:
                channels[each.slot] = connect(each.host, each.port, secret)
                channels[each.slot].send(pickle.dumps(slot))
        for _ in range(len(others) - len(channels)):
            channel = proved(listener.accept(), secret)
            channels[pickle.loads(channel.receive())] = channel
        return cls(channels)

    def exchange(self, packets: Mapping[int, list[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        """Sends each of these slots its packets, and yields the packets that each of them sent."""
        for slot, several in packets.items():
            try:
                self._channels[slot].send(stream_of(several))
            except ChannelClosed as error:
                raise PeerLost from error
        for slot in packets:
            received = self._received[slot].get()
            if received is None:
                raise PeerLost
            yield from batches_of(received)

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()

    def _receive(self, slot: int) -> None:
        try:
            while True:
                self._received[slot].put(self._channels[slot].receive())
        except ChannelClosed:
            self._received[slot].put(None)


def _named(error: Exception, batch: int) -> AnabranchError:
    named = HostError(
        f"a slot failed on batch {batch}",
        detail=f"{type(error).__name__}: {error}",
        hint="if the query uses Python functions, look there first; the batch is not committed",
    )
    named.__cause__ = error
    return named
