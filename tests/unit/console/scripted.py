"""A handle with scripted batches, for the console."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from anabranch.cql import compile_query
from anabranch.errors import PlanError
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.ddl import parse_schema
from anabranch.plan.mesh import Plan, parse_plan
from anabranch.plan.partitioning import Dimension, Partitioning
from anabranch.plan.query_set import QuerySet, alone
from anabranch.run.progress import BatchProgress, SlotProgress
from anabranch.stats.mesh.routes import HopStatistics, RouteStatistics
from anabranch.stats.step import ProbeStatistics, StateStatistics, StepStatistics

BEGAN_AT = 1_700_000_040
"""When the first trigger began; there is one every two seconds."""
CATALOG = Catalog()
for _name in ("a", "b", "c"):
    CATALOG.register(StreamDeclaration(_name, parse_schema("ts timestamp, k bigint, v string"), "ts"))
TEXT = (
    "SELECT a.v AS x FROM a [RANGE 9 SECONDS], b [RANGE 9 SECONDS], c [RANGE 9 SECONDS] WHERE a.k = b.k AND b.k = c.k"
)
QUERY = compile_query(TEXT, CATALOG)
TREE = parse_plan("((a b) c)")
MESH = parse_plan("mesh(a: b>c, c>b by (k <= 5 ? 0 : 1); b: a>c; c: a>b)")
DECISION = {
    "kind": "decision", "batch": 1, "action": "keep", "policy": "periodic", "trigger": "ten batches have passed",
    "plan": "((a b) c)", "cost": {"cpu": 0.1, "memory": 5.0, "rate": 2.0}, "proposed": "(a (b c))",
    "proposedCost": {"cpu": 0.09, "memory": 5.0, "rate": 2.0}, "origin": "optimizer", "strategy": "moving-state",
    "migrationCost": None, "reason": "needs 90% of the cpu, a ratio of 1.2 is wanted", "statistics": {}, "slots": [0],
}  # fmt: skip
BEGAN = {
    "kind": "migration", "batch": 2, "by": "user", "slots": [0, 1], "phase": "began", "from": "((a b) c)",
    "to": "(a (b c))", "strategy": "moving-state", "slotsInPlace": 2, "recomputedRows": 7, "seconds": 0.01,
}  # fmt: skip


START = {
    "kind": "start", "batch": 0, "plan": "((a b) c)", "cost": {"cpu": 0.1, "memory": 5.0, "rate": 2.0},
    "reason": "needs the least CPU", "considered": [
        {"plan": "(a (b c))", "cost": {"cpu": 0.2, "memory": 5.0, "rate": 2.0}, "reason": "needs twice the CPU"},
    ],
}  # fmt: skip


class Recorded:
    """A record as the history has it."""

    def __init__(self, value: Mapping[str, Any]) -> None:
        self._value = dict(value)

    def to_json(self) -> dict[str, Any]:
        return self._value


def statistics(plan: Plan) -> StepStatistics:
    routes = (RouteStatistics("a", 0, 30, 3, (HopStatistics("b", 30, 9),)), RouteStatistics("a", 1, 10, 1))
    return StepStatistics(
        {"a": 80, "b": 20, "c": 10},  # both slots take the rows of a
        15,  # with parts of groups
        (
            ProbeStatistics("(a b)", "a", "b", 40, 800, 10, 10, 10),
            ProbeStatistics("((a b) c)", "c", "(a b)", 10, 300, 5, 5, 5),
        ),
        (StateStatistics("a", 100, 4000), StateStatistics("(a b)", 30, 900)),
        {"probe": 0.2},
        routes if plan is MESH else (),
    )


def progress(
    batch: int, plan: Plan = TREE, records: Sequence[Mapping[str, Any]] = (), migrating: tuple[int, ...] = ()
) -> dict[str, Any]:
    """The progress of a trigger, as a handle returns it."""
    ours = BatchProgress(
        plan=str(plan),
        plans=(plan, plan),
        migrating=migrating,
        records=tuple(Recorded(record) for record in records),  # type: ignore[misc]
        rows_in={"a": 40, "b": 20, "c": 10},
        rows_out=12,
        late_rows={"a": 1, "b": 0},
        ahead_rows={},
        undated_rows={"a": 0, "c": 3},
        watermark=(1_700_000_000 + batch) * 1_000_000,
        newest={"a": (1_700_000_030 + batch) * 1_000_000},
        idle_streams=(),
        seconds={"plan": 0.1, "step": 0.9, "commit": 0.1, "adapt": 0.0},
        slots=(
            SlotProgress(0, True, {"probe": 0.2}, 60, 9, 0.3, 4000),
            SlotProgress(1, True, {"probe": 0.1}, 10, 3, 0.1, 900),
        ),
        partitioning=Partitioning((Dimension("k0", frozenset("abc"), 4),), 2, (0, 0, 0, 1)),
        sent={"a": 1.0},
        statistics=statistics(plan),
        queries={},
    )
    return {
        "batchId": batch,
        "timestamp": datetime.fromtimestamp(BEGAN_AT + 2 * batch, UTC).isoformat().replace("+00:00", "Z"),
        "durationMs": {"triggerExecution": 1500, "addBatch": 1000},
        "sources": [{"metrics": {"numFilesOutstanding": "7", "numBytesOutstanding": "9000"}}, {"metrics": {}}],
        "adaptive": ours.to_json(),
    }


class ScriptedHandle:
    """Shows the batches that a test has added; notes what is asked of it."""

    def __init__(self, name: str = "pairs") -> None:
        self.runId, self.name = f"run-{name}", name
        self.isActive = True
        self.queries: QuerySet = alone(QUERY)
        self.history: list[dict[str, Any]] = []
        self.batches: list[dict[str, Any]] = []
        self.asked: list[tuple[Any, ...]] = []
        self.error: BaseException | None = None
        self.status = {"isDataAvailable": True}

    def add(
        self, plan: Plan = TREE, records: Sequence[Mapping[str, Any]] = (), migrating: tuple[int, ...] = ()
    ) -> None:
        self.batches.append(progress(len(self.batches), plan, records, migrating))
        self.history += [dict(record) for record in records]

    def now(self) -> float:
        """Right after the latest batch."""
        return BEGAN_AT + 2.0 * len(self.batches)

    def progressAfter(self, batch: int) -> Sequence[Mapping[str, Any]]:
        return [each for each in self.batches if each["batchId"] > batch]

    def exception(self) -> BaseException | None:
        return self.error

    def migrate(
        self,
        plan: str,
        strategy: str = "auto",
        slots: Iterable[int] | None = None,
        box_by_box: bool = False,
        query: str | None = None,
    ) -> None:
        if "z" in plan:
            raise PlanError("'z' is not a relation of the query", hint="use a, b and c")
        self.asked.append(("migrate", plan, strategy, slots, query))

    def abortMigration(self, query: str | None = None) -> None:
        self.asked.append(("abort", query))

    def freeze(self, frozen: bool = True) -> None:
        self.asked.append(("freeze", frozen))

    def rebalance(self) -> None:
        self.asked.append(("rebalance",))

    def move(self, groups: Iterable[int], to: int) -> None:
        self.asked.append(("move", list(groups), to))

    def scale(self, slots: int) -> None:
        self.asked.append(("scale", slots))

    def split(self, value: Any, over: int | Sequence[int] | None = None, key: str | None = None) -> None:
        self.asked.append(("split", value, key))

    def unite(self, value: Any, key: str | None = None) -> None:
        self.asked.append(("unite", value, key))
