"""The driver's side of the resident slots: starts their job, accepts their connections, and sends them orders.

Spark starts all tasks of the job together, and restarts all of them if one dies. Every start is a *turn*; only the
slots of the newest turn work. Invariant: an order is answered by all slots of one turn, or `SlotsLost` is raised and
all connections of the turn are closed, so that none of its slots continues. Limit: a job that fails before its slots
have answered an order is not started again.
"""

from __future__ import annotations

import pickle
import secrets
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from anabranch.errors import HostError
from anabranch.run.channel import Channel, ChannelClosed, Listener, proved
from anabranch.spark.resident.messages import Answer, Hello, Setup, Turn
from anabranch.spark.resident.slot import Address

PATIENCE = 5.0
"""Seconds for tasks to end by themselves, and then again for their job to be cancelled."""


class Job(Protocol):
    """A job with a task for each slot."""

    def run(self, address: Address, number: int) -> None:
        """Runs the job; `number` counts its starts. Returns when it ends."""

    def cancel(self) -> None:
        """Ends the job, even if it is still waiting for cores."""


class SlotsLost(Exception):
    """A slot has died; the batch must be repeated."""


class Slots:
    """The slots of a run, from the first order to `close`."""

    def __init__(
        self, count: int, host: str, checkpoint: str, job: Job, *, bind: str | None = None, patience: float = PATIENCE
    ) -> None:
        """`host` is the name by which the tasks reach this driver, `bind` the address that it listens at."""
        self._count, self._checkpoint, self._job = count, checkpoint, job
        try:
            self._listener = Listener(bind or host)
        except OSError as error:
            raise HostError(
                f"the driver cannot listen at '{bind or host}' for its resident slots",
                detail=str(error),
                hint="set spark.driver.host, or spark.driver.bindAddress, to an address of this machine",
            ) from error
        self._address = Address(host, self._listener.port, secrets.token_bytes(32))
        self._changed = threading.Condition()
        self._turn: Turn = (0, 0)
        self._meeting: dict[int, tuple[Hello, Channel]] = {}
        """The slots of the newest turn that have connected."""
        self._channels: Mapping[int, Channel] = {}
        """The working slots; empty until all are connected to each other."""
        self._jobs, self._has_job, self._has_answered = 0, False, True
        self._failure: BaseException | None = None
        self._patience = patience
        self._is_leaving, self._is_over = False, False
        threading.Thread(target=self._welcome, name="anabranch-slots", daemon=True).start()

    @property
    def processes(self) -> dict[int, int]:
        """The process id of each working slot on its machine."""
        with self._changed:
            return {slot: hello.process for slot, (hello, _) in self._meeting.items() if slot in self._channels}

    def require(self) -> None:
        """Waits until all slots work; starts their job if necessary."""
        self._ready()

    def order(self, working: Sequence[int], content: Callable[[Turn], bytes]) -> dict[int, Answer]:
        """Sends an order to some slots and returns their answers; `content` creates the order for a turn."""
        channels, turn = self._ready()
        message = content(turn)
        try:
            for slot in working:
                channels[slot].send(message)
            answers = {slot: pickle.loads(channels[slot].receive()) for slot in working}
        except ChannelClosed as error:
            self._leave(turn)
            raise SlotsLost from error
        errors = [each.error for each in answers.values() if each.error is not None]
        if errors:
            self._leave(turn)
            raise errors[0]
        if any(each.is_lost for each in answers.values()):
            self._leave(turn)
            raise SlotsLost
        self._has_answered = True
        return answers

    def wait_no_more(self) -> None:
        """Lets a current order finish, but stops waiting for slots that have not connected."""
        with self._changed:
            self._is_leaving = True
            self._changed.notify_all()

    def close(self) -> None:
        """Ends all slots and waits until their job has ended."""
        with self._changed:
            self._is_over = True
            turn = self._turn
            self._changed.notify_all()
        self._listener.close()
        self._leave(turn)
        with self._changed:
            if self._changed.wait_for(lambda: not self._has_job, self._patience):
                return
        self._job.cancel()
        with self._changed:
            self._changed.wait_for(lambda: not self._has_job, self._patience)

    def _ready(self) -> tuple[Mapping[int, Channel], Turn]:
        with self._changed:
            while not self._channels:
                if self._is_leaving or self._is_over:
                    raise SlotsLost
                if not self._has_job:
                    self._start()
                self._changed.wait()
            return self._channels, self._turn

    def _start(self) -> None:
        if not self._has_answered:
            raise HostError(
                "the resident slots have ended before they finished a batch",
                detail=_reason(self._failure),
                hint="the batch is not committed; if the machine ran out of memory, use more slots or shorter windows",
            ) from self._failure
        self._jobs, self._has_job, self._has_answered = self._jobs + 1, True, False
        threading.Thread(target=self._run_job, args=(self._jobs,), name="anabranch-job", daemon=True).start()

    def _run_job(self, number: int) -> None:
        failure: BaseException | None = None
        try:
            self._job.run(self._address, number)
        except BaseException as error:
            failure = error
        with self._changed:
            turn = self._turn
        self._leave(turn)
        with self._changed:
            self._has_job, self._failure = False, failure
            self._changed.notify_all()

    def _leave(self, turn: Turn) -> None:
        """Closes the connections of a turn, which ends its tasks."""
        with self._changed:
            if turn != self._turn:
                return
            leaving = [channel for _, channel in self._meeting.values()]
            self._meeting, self._channels = {}, {}
        for channel in leaving:
            channel.close()

    def _welcome(self) -> None:
        """Accepts connections; each has its own thread, so that a silent client does not block the others."""
        with suppress(ChannelClosed):
            while True:
                connected = self._listener.accept()
                threading.Thread(target=self._meet, args=(connected,), name="anabranch-hello", daemon=True).start()

    def _meet(self, connected: socket.socket) -> None:
        with suppress(ChannelClosed):
            channel = proved(connected, self._address.secret)
            hello: Hello = pickle.loads(channel.receive())
            with self._changed:
                leaving = [channel] if self._is_over or hello.turn < self._turn else []
                if not leaving and hello.turn > self._turn:
                    leaving = [each for _, each in self._meeting.values()]
                    self._turn, self._meeting, self._channels = hello.turn, {}, {}
                if channel not in leaving:
                    self._meeting[hello.slot] = hello, channel
                met = dict(self._meeting)
            for each in leaving:
                each.close()
            if channel not in leaving and len(met) == self._count:
                self._introduce(hello.turn, met)

    def _introduce(self, turn: Turn, met: Mapping[int, tuple[Hello, Channel]]) -> None:
        """Connects the slots of a turn with each other, once all of them have connected to the driver."""
        setup = pickle.dumps(Setup(self._checkpoint, tuple(hello for hello, _ in met.values())))
        channels = {slot: channel for slot, (_, channel) in met.items()}
        try:
            for channel in channels.values():
                channel.send(setup)
            for channel in channels.values():
                channel.receive()
        except ChannelClosed:
            self._leave(turn)
            return
        with self._changed:
            if turn == self._turn and len(self._meeting) == self._count:
                self._channels = channels
                self._changed.notify_all()


def _reason(failure: BaseException | None) -> str:
    return "their job was ended" if failure is None else f"{type(failure).__name__}: {failure}".partition("\n")[0]
