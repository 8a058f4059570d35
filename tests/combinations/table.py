"""The table of combinations: what a query may consist of, what may happen to it, and which pairs are refused.

Every pair of entries is exact on every host, or in `REFUSED` with the error that refuses it and the reason. The suite
draws the exact pairs and raises every refusal, so a pair that is neither fails; `docs/combinations.md` shows the table.
Limit: pairs. Combinations of three and more are drawn by `make faults`, from the same table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from anabranch.errors import (
    AnabranchError,
    BatchError,
    BindError,
    BundleError,
    ForeignCheckpoint,
    MigrationError,
    PlanError,
    SpecError,
    Unsupported,
)
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
        Entry("top-N", "`QUALIFY ROW_NUMBER() OVER (…) <= n`: the first rows of each window"),
        Entry("session window", "`[SESSION t]`", ("groups",)),
        Entry("ASOF join", "`ASOF JOIN` or `LEFT ASOF JOIN`"),
        Entry("UNION ALL", "a relation that is several streams together"),
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
    frozenset({"groups", "groups by window()", "top-N"}),
    frozenset({"inner join", "ASOF join"}),
    frozenset({"session window", "tumbling window"}),
    frozenset({"session window", "hopping window"}),
    frozenset({"session window", "count window"}),
    frozenset({"merged inputs", "groups by window()"}),
)
"""Entries of which a query has one at most: they are other values of one choice."""


@dataclass(frozen=True)
class Refusal:
    """Pairs that are refused, by which error, and why."""

    error: type[AnabranchError]
    text: str
    """Part of the message."""
    reason: str
    pairs: tuple[frozenset[str], ...]
    forms: str = ""
    """The forms of the pair that are refused, if others are exact."""
    elsewhere: str = ""
    """The test that raises the error (`file::function`), where the pairs that are drawn here are too small for it."""


def pair(one: str, other: str) -> frozenset[str]:
    return frozenset({one, other})


def with_each(one: str, *others: str) -> tuple[frozenset[str], ...]:
    return tuple(pair(one, other) for other in others)


SIDES = ("outer join", "semi join", "anti join")
GROUPED = ("groups", "groups by window()", "having", "hopping window", "merged inputs")
STAGES = ("reads a query", "read by a query", "UNION ALL")
WAITING = ("row-synchronised", "totally-synchronised")

REFUSALS: tuple[Refusal, ...] = (
    # --- two features -------------------------------------------------------------------------------------------------
    Refusal(
        Unsupported,
        "[ROWS n] in an outer, semi or anti join is not supported",
        "A row leaves a count window when others come, so no watermark proves that a combination has no match.",
        with_each("count window", *SIDES),
    ),
    Refusal(
        Unsupported,
        "[ROWS n] in an outer, semi or anti join is not supported",
        "As above: a table that is joined by `LEFT JOIN` is a side too.",
        with_each("count window", "table", "table changes"),
        "`LEFT JOIN` of the table",
    ),
    Refusal(
        BindError,
        "has a window of its own already",
        "`window(…)` over one stream is the window of that stream.",
        with_each("groups by window()", "count window", "tumbling window"),
        "a query over one stream",
    ),
    Refusal(
        BindError,
        "has a window of its own already",
        "`window(…)` over one stream is the window of that stream.",
        with_each("groups by window()", "hopping window"),
        "a query over one stream",
    ),
    Refusal(
        BindError,
        "HOP is not allowed in a query without aggregates",
        "`window(…)` groups the results of a join, which slides by no step.",
        with_each("groups by window()", "hopping window"),
        "a join",
    ),
    Refusal(
        BindError,
        "windows with and without their end stand side by side",
        "A row at a boundary would be in one window of the join and not in the other.",
        with_each("count window", "hopping window"),
        "a join",
    ),
    Refusal(
        BindError,
        "windows with and without their end stand side by side",
        "As above.",
        with_each("count window", "tumbling window"),
        "a grouped join",
    ),
    Refusal(
        BundleError,
        "results that may be arbitrarily older than its watermark",
        "A row stays in its count window until others come, and its event time becomes that of the result.",
        with_each("count window", "groups by window()"),
        "a join whose count window has no RANGE",
    ),
    Refusal(
        BindError,
        "is not the event time of a stream that is in every result",
        "A result without the row has no time by which it could be grouped.",
        with_each("groups by window()", "outer join"),
        "the event time of a stream that an outer join may leave NULL",
    ),
    Refusal(
        BundleError,
        "which are results, beside",
        "Rows of streams come before results in each batch, and would meet rows that later results push out.",
        with_each("count window", "UNION ALL"),
        "a join whose count window is that of the results",
    ),
    Refusal(
        BindError,
        "is not the event time of a stream that is in every result",
        "The streams together are a relation of their own, with the event times of their rows.",
        with_each("groups by window()", "UNION ALL"),
        "a join",
    ),
    Refusal(
        Unsupported,
        "HAVING beside ROW_NUMBER() is not supported",
        "A query either forms groups or numbers rows; a query over groups can number them.",
        with_each("top-N", "having"),
    ),
    Refusal(
        Unsupported,
        "session windows of a join are not supported",
        "Rows of a session are combined when it has ended, and a join would hold them until then.",
        with_each("session window", "inner join", *SIDES, "table"),
    ),
    Refusal(
        BundleError,
        "has a session window",
        "When a session ends depends on its rows, so no window bounds the rows that others would need.",
        with_each("session window", "set", *STAGES),
    ),
    Refusal(
        BindError,
        "the stream on the left of ASOF JOIN takes no window",
        "Each of its rows meets the latest row at its own event time.",
        with_each(
            "ASOF join",
            "groups",
            "having",
            "hopping window",
            "tumbling window",
            "count window",
            "top-N",
            "merged inputs",
        ),
    ),
    Refusal(
        BindError,
        "the stream on the left of ASOF JOIN takes no window",
        "As above.",
        with_each("ASOF join", "session window"),
    ),
    Refusal(
        Unsupported,
        "ASOF JOIN beside another join of streams is not supported",
        "The latest row is that of a count window, which the rows of a side cannot leave.",
        with_each("ASOF join", "outer join"),
    ),
    Refusal(
        Unsupported,
        "ASOF JOIN beside another join of streams is not supported",
        "As above.",
        with_each("ASOF join", "semi join", "anti join"),
        "`SEMI JOIN` and `ANTI JOIN`; the subqueries of `WHERE` come after the join",
    ),
    Refusal(
        Unsupported,
        "ASOF JOIN takes equalities with columns of the joined stream",
        "Its one comparison of event times names those of two streams.",
        with_each("ASOF join", "interval join", "reads a query", "UNION ALL"),
    ),
    Refusal(
        SpecError,
        "cannot run with execution",
        "The results of a batch are found in several stages, each in its own order.",
        (*with_each("semi-synchronised", *STAGES), *with_each("totally-synchronised", *STAGES)),
    ),
    Refusal(
        SpecError,
        "cannot run with execution",
        "`window(…)` over a join groups the results of the join, in a second stage.",
        with_each("groups by window()", "semi-synchronised", "totally-synchronised"),
        "a join",
    ),
    Refusal(
        SpecError,
        "rows cannot be buffered until the watermark because",
        "The results of the join may be older than the watermark by which rows are released.",
        with_each("groups by window()", "row-synchronised"),
        "a join",
    ),
    Refusal(
        SpecError,
        "rows cannot be buffered until the watermark because",
        "As above: a count window makes rows wait.",
        with_each("groups by window()", "count window"),
        "a join",
        "unit/run/test_waiting_rows.py::test_a_join_with_a_count_window_is_not_read_by_window",
    ),
    Refusal(
        SpecError,
        "rows cannot be buffered until the watermark because",
        "As above: results of outer joins come late.",
        with_each("read by a query", "row-synchronised"),
        "a query with outer, semi or anti joins below",
        "unit/run/test_waiting_rows.py::test_results_of_an_outer_join_are_not_read_where_rows_wait",
    ),
    Refusal(
        BundleError,
        "by an outer, semi or anti join",
        "The states behind an outer join hold the rows of one window; another alias keeps them apart.",
        with_each("outer join", "own terms in a set"),
        "another window, or another filter behind `FULL JOIN`",
    ),
    Refusal(
        BundleError,
        "that the other queries do not have",
        "A function that may fail would be called with rows that the filter of the query keeps away.",
        with_each("own function", "set", "own terms in a set", "query joins", "query leaves", "query comes back"),
        "a function that may fail, behind a filter that not all queries have",
    ),
    Refusal(
        PlanError,
        "which the query does not allow",
        "Combinations are matched with the rows of a side one by one.",
        with_each("merged inputs", *SIDES),
    ),
    Refusal(
        PlanError,
        "which the query does not allow",
        "As above: a table that is joined by `LEFT JOIN` is a side too.",
        with_each("merged inputs", "table", "table changes"),
        "`LEFT JOIN` of the table",
    ),
    Refusal(
        PlanError,
        "keeps combinations with rows of",
        "When a row leaves its count window is known when others have come, and a merged row would not hear of it.",
        with_each("merged inputs", "count window"),
    ),
    # --- a feature and an event ---------------------------------------------------------------------------------------
    Refusal(
        BatchError,
        "cannot change: the query has groups or waits for the watermark",
        "After a crash, groups and combinations that wait would be computed with another version of the table.",
        with_each("table changes", *SIDES, "groups", "having", "hopping window", "merged inputs", "top-N"),
    ),
    Refusal(
        BatchError,
        "cannot change: the query has groups or waits for the watermark",
        "As above. Where `window(…)` groups the results of a join, they are kept with the rows of the table.",
        with_each("table changes", "groups by window()"),
        "a query over one stream",
    ),
    Refusal(
        BatchError,
        "cannot change: the query has groups or waits for the watermark",
        "As above.",
        with_each("table changes", "ASOF join"),
        "`LEFT ASOF JOIN`",
    ),
    Refusal(
        PlanError,
        "groups cannot move on parallel tracks",
        "The old and the new slot would both need all rows of a group to match, load or count them.",
        with_each(
            "move by parallel-track",
            *(*SIDES, "table", "table changes", *STAGES, "count window", "session window", "ASOF join"),
        ),
    ),
    Refusal(
        PlanError,
        "groups cannot move on parallel tracks",
        "`window(…)` over a join groups the results of the join, in a second stage.",
        with_each("move by parallel-track", "groups by window()"),
        "a join",
    ),
    Refusal(
        PlanError,
        "a move cannot be spread over several batches",
        "Slots whose pending groups, waiting combinations, tables or counts depend on all rows are rebuilt at once.",
        with_each(
            "move in parts",
            *(*SIDES, *GROUPED, "top-N", "session window", "table", "table changes"),
            *(*WAITING, "count window", "ASOF join"),
        ),
    ),
    Refusal(
        PlanError,
        "a move cannot be spread over several batches",
        "A group that moves takes rows along that other groups of its slot need; groups are rebuilt at once.",
        with_each("move in parts", *STAGES),
        "queries with groups, or whose relations have no key in common",
    ),
    Refusal(
        PlanError,
        "cannot be cut into",
        "Rows that one query makes for another are sent by keys alone.",
        with_each("heavy-key split", *STAGES, "groups by window()"),
    ),
    Refusal(
        PlanError,
        "cannot be cut into",
        "A combination must find all rows of a side in its slot.",
        with_each("heavy-key split", "outer join"),
        "`FULL JOIN`, where no relation is left whose rows could be spread",
    ),
    Refusal(
        PlanError,
        "slots cannot be used: the grid has 1 partition groups",
        "All rows of a count window without PARTITION BY are counted in one slot.",
        with_each("count window", "scale"),
        "one stream with `[ROWS n]`",
        "unit/balance/test_scaling.py::test_more_slots_than_groups_are_not_used",
    ),
    Refusal(
        MigrationError,
        "strategy 'parallel-track' might never end",
        "A row stays in its count window until others have come.",
        with_each("count window", "switch by parallel-track"),
        "a plan with states of other relations",
        "unit/migrate/strategies/test_registry.py::test_parallel_track_is_refused_where_rows_are_counted",
    ),
    Refusal(
        MigrationError,
        "strategy 'spread' does not support plan",
        "The states of inputs that merge rows hold parts of groups, not rows that could be computed bit by bit.",
        with_each("merged inputs", "switch by spread"),
    ),
    Refusal(
        MigrationError,
        "strategy 'parallel-track' would never end",
        "Rows of tables never expire.",
        with_each("table", "switch by parallel-track"),
        "a plan that joins tables before it joins streams",
    ),
    Refusal(
        ForeignCheckpoint,
        "cannot be taken over by the changed query",
        "Rows that have left a count window are gone, and a changed query may count others.",
        (pair("count window", "evolve"), pair("session window", "evolve"), pair("ASOF join", "evolve")),
    ),
    Refusal(
        ForeignCheckpoint,
        "cannot be taken over by the changed query",
        "Its readers have rows of the old query in their windows.",
        with_each("read by a query", "evolve"),
    ),
    Refusal(
        BundleError,
        "no query joins a, b",
        "A shared join keeps combinations, and a row leaves its count window when others come.",
        with_each("count window", "share", "unshare"),
        "a count window inside the join",
    ),
    Refusal(
        BundleError,
        "cannot share join",
        "The streams together are a relation of one query.",
        with_each("UNION ALL", "share", "unshare"),
    ),
    Refusal(
        BundleError,
        "no query joins a, b",
        "As above: the stream on the right of an ASOF join has a count window.",
        with_each("ASOF join", "share", "unshare"),
    ),
    Refusal(
        BundleError,
        "can be neither added nor removed",
        "Rows wait for the watermark while a query counts them, and a query that joins lacks the rows before it.",
        (
            *with_each("count window", "query joins", "query leaves", "query comes back"),
            *with_each("ASOF join", "query joins", "query leaves", "query comes back"),
        ),
        "the query with the count window",
    ),
    # --- two events ---------------------------------------------------------------------------------------------------
    Refusal(
        PlanError,
        "partition groups are to move with the next batch already",
        "Moves follow one another: `scale` counts the rows of a batch, and moves groups with the next.",
        (
            *with_each("scale", "move by moving-state", "move by parallel-track", "move in parts", "another grid"),
            *with_each("scale", "heavy-key split"),
            *with_each("move in parts", "move by moving-state", "move by parallel-track", "another grid"),
            *with_each("move in parts", "heavy-key split"),
        ),
        "a move before the groups of the one before have moved",
    ),
    Refusal(
        PlanError,
        "a move cannot be spread over several batches",
        "The rows of a split key go to several slots.",
        with_each("move in parts", "heavy-key split"),
        "a move after the split",
    ),
    Refusal(
        PlanError,
        "partition groups are on their way",
        "Moves follow one another: a move on parallel tracks ends when the old rows have left.",
        with_each("move by parallel-track", "move by moving-state", "move in parts", "another grid", "scale"),
        "a move while old rows are in their windows",
    ),
    Refusal(
        PlanError,
        "partition groups are on their way",
        "As above: a split is a move.",
        with_each("move by parallel-track", "heavy-key split"),
        "a split while old rows are in their windows",
    ),
    Refusal(
        MigrationError,
        "queries begin and stop to share a join by moving its state",
        "A shared join has one state for all its users.",
        with_each("share", "switch by parallel-track", "switch by spread", "switch by none"),
        "a switch away from the shared join",
    ),
)


NOT_DRAWN: Mapping[str, str] = {
    "real-time mode": (
        "It is another host, not a feature: plans, states, rounds and manifests are the same. Driver and slots die at "
        "every crash point in `contract/test_resident`, `spark/test_real_time` and `spark/test_real_time_kafka`; "
        "queries there are a join of three streams and a grouped join."
    ),
    "sources and sinks": (
        "Schedules read tables in memory or Parquet files, and write tables or Parquet files. The tests in `spark` run "
        "the others."
    ),
    "`SELECT DISTINCT`, `WITH`, subqueries in FROM": (
        "They become groups, and queries that read queries, which are in the table."
    ),
    "branches, sites, shedding": (
        "`oracle/test_branching`, `oracle/test_sites` and `oracle/test_shedding` draw them, with fewer features beside "
        "them."
    ),
    "changes that the system decides": "A schedule asks for each change itself.",
}
"""What no schedule draws, and why."""


def refusals(one: str, other: str) -> tuple[Refusal, ...]:
    """Returns the refusals of a pair; none if it is exact."""
    both = pair(one, other)
    return tuple(each for each in REFUSALS if both in each.pairs)


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
