"""Migration of joins that stand on different machines, as in Zhu 2006, Chapter 19: both protocols, and their choice.

A *manager* leads some *machines* from an old plan of joins to a new one. Manager and machines are state machines
without I/O: they take a message and return messages. Who delivers these, and when, is not their concern.

Moving state (Section 19.1): every machine tells its latest time; all run up to the largest of them; each gets its part
of the new plan; each gets the list of states it shall have, with the machines that have them, fetches those that exist,
and computes the others from what it fetches; two handshakes, and the operators run again.

Parallel track (Section 19.2): the old box is halted, the new one is sent and connected to the same inputs, both run,
results of new rows alone come from the new box, and when no row from before the change is left the old box is removed.

The choice (Section 19.3) is by bytes to ship: the states that moving state fetches, against the rows that parallel
track sends to both boxes for two windows and the intermediate rows that the new box sends between machines.

The paper leaves open what the two handshakes before the end of moving state say (here: connect, then activate), and
whether a state that must be computed is computed where it shall be or where its inputs are (here: where it shall be).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Strategy: TypeAlias = Literal["moving-state", "parallel-track"]
MANAGER = "manager"
MOVING = ("RequestSyncTime", "SyncTime", "NewSubplan", "FillStates", "Connect", "Activate")
PARALLEL = ("DeactivateBox", "NewBox", "StartBoth", "RemoveOldBox")
ANSWERS = {
    "RequestSyncTime": "LatestTime",
    "SyncTime": "ExecutionSynced",
    "NewSubplan": "PlanChanged",
    "FillStates": "StateFilled",
    "Connect": "Connected",
    "Activate": "Activated",
    "DeactivateBox": "BoxDeactivated",
    "NewBox": "BoxConnected",
    "StartBoth": "OldPurged",
    "RemoveOldBox": "OldBoxRemoved",
}


@dataclass(frozen=True)
class Message:
    """One message: its kind, both ends, and what it carries."""

    kind: str
    sender: str
    receiver: str
    time: float = 0.0
    states: tuple[str, ...] = ()
    places: tuple[tuple[str, str], ...] = ()
    """States with the machines that have them."""
    bytes: float = 0.0
    """Bytes of shipped state."""


@dataclass(frozen=True)
class Layout:
    """Which machine has which state under one plan; a state is named by its relations, such as `AB`."""

    places: Mapping[str, str]

    def on(self, machine: str) -> tuple[str, ...]:
        return tuple(state for state, at in self.places.items() if at == machine)

    @property
    def machines(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.places.values())))


@dataclass
class Manager:
    """Leads one migration; `receive` answers what machines report."""

    old: Layout
    new: Layout
    strategy: Strategy
    is_over: bool = False
    sync_time: float = 0.0
    _phase: int = -1
    _waiting: set[str] = field(default_factory=set)
    _times: list[float] = field(default_factory=list)

    @property
    def machines(self) -> tuple[str, ...]:
        return tuple(sorted({*self.old.machines, *self.new.machines}))

    @property
    def phases(self) -> tuple[str, ...]:
        return MOVING if self.strategy == "moving-state" else PARALLEL

    def begin(self) -> list[Message]:
        """The messages that begin the migration."""
        return self._next()

    def receive(self, message: Message) -> list[Message]:
        """Takes a report; when all machines have answered, the next phase begins."""
        expected = ANSWERS[self.phases[self._phase]]
        if message.kind != expected or message.sender not in self._waiting:
            raise ValueError(f"{message.kind} of {message.sender} came where {expected} was expected")
        self._waiting.discard(message.sender)
        self._times.append(message.time)
        return [] if self._waiting else self._next()

    def _next(self) -> list[Message]:
        if self._phase == 0 and self.strategy == "moving-state":
            self.sync_time = max(self._times)
        self._phase += 1
        if self._phase == len(self.phases):
            self.is_over = True
            return []
        self._waiting = set(self.machines)
        kind = self.phases[self._phase]
        return [self._order(kind, machine) for machine in self.machines]

    def _order(self, kind: str, machine: str) -> Message:
        wanted = self.new.on(machine) if kind in ("NewSubplan", "FillStates", "NewBox") else ()
        places: tuple[tuple[str, str], ...] = ()
        if kind == "FillStates":
            needed = [part for state in wanted for part in self.sources(state)]
            places = tuple((part, self.old.places[part]) for part in dict.fromkeys(needed))
        return Message(kind, MANAGER, machine, self.sync_time, wanted, places)

    def sources(self, state: str) -> tuple[str, ...]:
        """The old states from which a state is had: itself, or those of its relations."""
        return (state,) if state in self.old.places else tuple(state)


@dataclass
class Machine:
    """One machine: the states that it has, in bytes, and how far it has run."""

    name: str
    states: dict[str, float]
    time: float = 0.0
    shipped: float = 0.0
    """Bytes that other machines sent."""
    is_active: bool = True
    recomputed: tuple[str, ...] = ()
    _wanted: tuple[str, ...] = ()
    _lacking: set[str] = field(default_factory=set)
    _fetched: dict[str, float] = field(default_factory=dict)

    def receive(self, message: Message) -> list[Message]:
        """Does what a message asks for and answers."""
        match message.kind:
            case "RequestSyncTime":
                return [self._answer("LatestTime")]
            case "SyncTime":
                self.time, self.is_active = max(self.time, message.time), False
                return [self._answer("ExecutionSynced")]
            case "NewSubplan":
                self._wanted = message.states
                return [self._answer("PlanChanged")]
            case "FillStates":
                self._lacking = {state for state, at in message.places if at != self.name}
                self._fetched = {state: self.states[state] for state, at in message.places if at == self.name}
                asked = [
                    Message("RequestState", self.name, at, states=(s,)) for s, at in message.places if at != self.name
                ]
                return asked or self._fill()
            case "RequestState":
                (state,) = message.states
                size = self.states[state]
                return [Message("StateShipped", self.name, message.sender, states=(state,), bytes=size)]
            case "StateShipped":
                (state,) = message.states
                self._lacking.discard(state)
                self._fetched[state] = message.bytes
                self.shipped += message.bytes
                return [] if self._lacking else self._fill()
            case "Connect":
                return [self._answer("Connected")]
            case "Activate":
                self.is_active = True
                return [self._answer("Activated")]
            case "DeactivateBox":
                self.is_active = False
                return [self._answer("BoxDeactivated")]
            case "NewBox":
                self._wanted = message.states
                return [self._answer("BoxConnected")]
            case "StartBoth":
                self.is_active = True
                return []
            case "RemoveOldBox":
                self.states = {state: self.states.get(state, 0.0) for state in self._wanted}
                return [self._answer("OldBoxRemoved")]
        raise ValueError(f"machine {self.name} does not know {message.kind}")

    def purged(self) -> Message:
        """The report that no row from before the change is left in the old box."""
        return self._answer("OldPurged")

    def _fill(self) -> list[Message]:
        self.recomputed = tuple(state for state in self._wanted if state not in self._fetched)
        self.states = {state: self._fetched.get(state, 0.0) for state in self._wanted}
        return [self._answer("StateFilled")]

    def _answer(self, kind: str) -> Message:
        return Message(kind, self.name, MANAGER, self.time)


@dataclass(frozen=True)
class Delivered:
    """A message with the time of its delivery, in seconds."""

    at: float
    message: Message


def deliver(
    manager: Manager, machines: Iterable[Machine], *, latency: float, bandwidth: float, purging: float = 0.0
) -> list[Delivered]:
    """Runs a migration on a virtual clock: a message takes the latency, and its bytes the bandwidth.

    `purging` are the seconds after which machines have no row from before the change (parallel track).
    """
    by_name = {machine.name: machine for machine in machines}
    waiting = [Delivered(latency, message) for message in manager.begin()]
    done: list[Delivered] = []
    while waiting:
        waiting.sort(key=lambda each: each.at)
        due = waiting.pop(0)
        done.append(due)
        message = due.message
        if message.receiver == MANAGER:
            answers = manager.receive(message)
        else:
            answers = by_name[message.receiver].receive(message)
            if message.kind == "StartBoth":
                answers = [*answers, by_name[message.receiver].purged()]
        for answer in answers:
            lasts = purging if answer.kind == "OldPurged" else 0.0
            waiting.append(Delivered(due.at + latency + lasts + answer.bytes / bandwidth, answer))
    return done


@dataclass(frozen=True)
class Traffic:
    """Rows per second and bytes of a row of each relation and intermediate result, and the window in seconds."""

    rates: Mapping[str, float]
    """Those that filled the states."""
    row_bytes: Mapping[str, float]
    window: float
    now: Mapping[str, float] | None = None
    """Those from the migration on, if they are others."""

    def state_bytes(self, state: str) -> float:
        """Bytes of a state: what is born in a window."""
        return self.rates[state] * self.window * self.row_bytes[state]


def bytes_to_ship(old: Layout, new: Layout, traffic: Traffic, strategy: Strategy) -> float:
    """The bytes that a migration sends between machines beyond what the plans send anyway (Section 19.3)."""
    if strategy == "moving-state":
        manager = Manager(old, new, strategy)
        total = 0.0
        for machine in new.machines:
            needed = dict.fromkeys(part for state in new.on(machine) for part in manager.sources(state))
            total += sum(traffic.state_bytes(part) for part in needed if old.places[part] != machine)
        return total
    total = 0.0
    for state, at in new.places.items():
        sends = len(state) > 1 or old.places.get(state) != at
        if sends and (len(state) == 1 or _crosses(state, at, new)):
            total += 2 * traffic.window * (traffic.now or traffic.rates)[state] * traffic.row_bytes[state]
    return total


def _crosses(state: str, at: str, new: Layout) -> bool:
    """True when an intermediate result is made on another machine than that which keeps it."""
    inputs = [new.places[part] for part in new.places if part != state and set(part) < set(state)]
    return any(place != at for place in inputs)


def choose_strategy(old: Layout, new: Layout, traffic: Traffic) -> Strategy:
    """The strategy that ships fewer bytes."""
    moving, parallel = (bytes_to_ship(old, new, traffic, each) for each in ("moving-state", "parallel-track"))
    return "moving-state" if moving <= parallel else "parallel-track"
