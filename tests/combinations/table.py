"""The table of combinations: what a query may consist of, what may happen to it, and which pairs are refused.

Every pair of entries is exact on every host, or in `REFUSED` with the error that refuses it and the reason. The suite
draws the exact pairs and raises every refusal, so a pair that is neither fails; `docs/combinations.md` shows the table.
Limit: pairs. Combinations of three and more are drawn by `make faults`, from the same table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from anabranch.errors import AnabranchError
from anabranch.run.round import PHASES


@dataclass(frozen=True)
class Entry:
    """A feature of a query or an event of its life; `needs` are the entries without which it cannot be drawn."""

    name: str
    meaning: str
    needs: tuple[str, ...] = ()


FEATURES: Mapping[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("inner join", "two or more streams joined by `JOIN`"),
        Entry("interval join", "conditions over event times that are narrower than the windows", ("inner join",)),
        Entry("outer join", "`LEFT`, `RIGHT` or `FULL JOIN`"),
        Entry("semi join", "`LEFT SEMI JOIN`, `EXISTS` or `IN`"),
        Entry("anti join", "`LEFT ANTI JOIN` or `NOT EXISTS`"),
        Entry("table", "a lookup table, by `JOIN` or `LEFT JOIN`"),
        Entry("count window", "`[ROWS n]`, of all rows or of each part"),
        Entry("tumbling window", "`[TUMBLE t]`"),
        Entry("hopping window", "`[HOP t SLIDE s]`", ("groups",)),
        Entry("groups", "`GROUP BY` with a slide"),
        Entry("groups by window()", "`GROUP BY window(…)`"),
        Entry("having", "`HAVING`", ("groups",)),
        Entry("merged inputs", "a plan that merges rows before they join, `([a] b)`", ("groups", "inner join")),
        Entry("reads a query", "a query over the results of another one"),
        Entry("read by a query", "a query whose results another one reads"),
        Entry("set", "queries that run together and share relations"),
        Entry("own terms in a set", "windows and filters of a shared relation that differ between queries", ("set",)),
        Entry("semi-synchronised", "results in the order of event time"),
        Entry("row-synchronised", "rows wait for the watermark"),
        Entry("totally-synchronised", "rows wait, and results are in the order of event time"),
        Entry("own function", "user-defined functions in SELECT, WHERE and keys"),
        Entry("late sink", "late rows are written to a side output"),
        Entry("max_ahead", "rows too far in the future are diverted"),
    )
}

EVENTS: Mapping[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("switch by moving-state", "another plan, states are computed at once", ("inner join",)),
        Entry("switch by parallel-track", "another plan beside the old one", ("inner join",)),
        Entry("switch by spread", "another plan, states are computed over several batches", ("inner join",)),
        Entry("switch by none", "another plan whose states are there", ("inner join",)),
        Entry("mesh", "a query mesh instead of a plan", ("inner join",)),
        Entry("move by moving-state", "partition groups move to another slot at once"),
        Entry("move by parallel-track", "partition groups move once old rows have left"),
        Entry("move in parts", "partition groups move over several batches"),
        Entry("another grid", "the partition groups are those of another grid"),
        Entry("scale", "another number of slots"),
        Entry("heavy-key split", "the rows of one key are spread over slots", ("inner join",)),
        Entry("query joins", "a query joins the running set", ("set",)),
        Entry("query leaves", "a query leaves the running set", ("set",)),
        Entry("query comes back", "a query leaves the running set and joins again", ("set",)),
        Entry("share", "queries begin to share a join", ("set", "inner join")),
        Entry("unshare", "queries stop sharing a join", ("set", "inner join")),
        Entry("table changes", "a table gets other rows", ("table",)),
        Entry("restart", "with another plan and another number of slots"),
        Entry("evolve", "a restart with a changed query"),
        *(Entry(f"crash at {phase}", f"the driver dies when the batch has announced `{phase}`") for phase in PHASES),
        Entry("failing write", "the disk of the checkpoint is full or broken, or the driver dies in a write"),
        Entry("failing sink", "the sink refuses a batch, or takes it and fails"),
        Entry("executor lost", "the hot state of a slot is gone"),
    )
}

ENTRIES: Mapping[str, Entry] = {**FEATURES, **EVENTS}

ALTERNATIVES: tuple[frozenset[str], ...] = (
    frozenset({"semi-synchronised", "row-synchronised", "totally-synchronised"}),
    frozenset({"groups", "groups by window()"}),
)
"""Entries of which a query has one at most: they are other values of one choice."""


@dataclass(frozen=True)
class Refusal:
    """A pair that is refused, by which error, and why."""

    error: type[AnabranchError]
    text: str
    """Part of the message."""
    reason: str


def pair(one: str, other: str) -> frozenset[str]:
    return frozenset({one, other})


REFUSED: Mapping[frozenset[str], Refusal] = {}


def closed(names: Iterable[str]) -> frozenset[str]:
    """Returns the entries with all that they need."""
    found = set(names)
    while True:
        more = {need for name in found for need in needs(name, found)} - found
        if not more:
            return frozenset(found)
        found |= more


def needs(name: str, others: Iterable[str]) -> tuple[str, ...]:
    """Returns what an entry needs; where the others have an alternative of it, that will do."""
    several = set(others)
    return tuple(
        need
        for need in ENTRIES[name].needs
        if not any(need in choice and (choice & several) - {need} for choice in ALTERNATIVES)
    )


def is_one_choice(names: frozenset[str]) -> bool:
    """True if two of the entries are values of one choice."""
    return any(len(names & choice) > 1 for choice in ALTERNATIVES)
