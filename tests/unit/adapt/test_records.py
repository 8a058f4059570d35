"""The records of a query's history in the form that users read: the keys are a promise."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from anabranch.adapt.knowledge import Knowledge
from anabranch.adapt.records import (
    BalanceDecided,
    Decision,
    MigrationBegan,
    MigrationEnded,
    PlanTaken,
    QueryRecord,
    Refusal,
    Rival,
)
from anabranch.balance.rule import Move, Rebalancing
from anabranch.cost.resources import Resources
from anabranch.migrate.strategies.strategy import Price
from anabranch.plan.mesh import parse_mesh
from anabranch.plan.text import parse
from anabranch.stats.mesh.learnt import LearntMesh

OLD, NEW = parse("((a b) c)"), parse("(a (b c))")
DECISION = Decision(
    batch=4,
    action="migrate",
    policy="periodic",
    trigger="the interval has passed",
    plan=OLD,
    cost=Resources(2.0, 100.0, 5.0),
    proposed=NEW,
    proposed_cost=Resources(1.0, 90.0, 5.0),
    origin="optimizer",
    price=Price("moving-state", 0.5, 10.0, 1.0),
    reason="saves 1 cores",
    statistics=Knowledge({"a": 3.0}),
    rivals=(Rival(parse("(a b c)"), Resources(2.0, 1.0, 1.0), "needs more CPU"),),
)
DECIDED = {
    "kind": "decision",
    "batch": 4,
    "action": "migrate",
    "policy": "periodic",
    "trigger": "the interval has passed",
    "plan": "((a b) c)",
    "cost": {"cpu": 2.0, "memory": 100.0, "rate": 5.0},
    "proposed": "(a (b c))",
    "proposedCost": {"cpu": 1.0, "memory": 90.0, "rate": 5.0},
    "origin": "optimizer",
    "strategy": "moving-state",
    "migrationCost": {"strategy": "moving-state", "cpu": 0.5, "memory": 10.0, "seconds": 1.0},
    "reason": "saves 1 cores",
    "statistics": {"rates": {"a": 3.0}, "filters": {}, "selectivities": {}, "groups": {}, "rows": {}, "batch": 1.0},
    "considered": [{"plan": "(a b c)", "cost": {"cpu": 2.0, "memory": 1.0, "rate": 1.0}, "reason": "needs more CPU"}],
    "bestWhile": [],
    "slots": [0, 1],
}
BEGAN = MigrationBegan(5, "loop", (0, 1), OLD, NEW, "moving-state", 2, 7, 0.25)
ENDED = MigrationEnded(6, "user", (1,), NEW, 2)
MESH = LearntMesh(parse_mesh("mesh(a: b; b: a)"), {}, 0.5)


@pytest.mark.parametrize(
    ("record", "form"),
    [
        (
            PlanTaken(0, OLD, Resources(2.0, math.inf, 5.0), "least CPU", DECISION.rivals),
            {
                "kind": "start",
                "batch": 0,
                "plan": "((a b) c)",
                "cost": {"cpu": 2.0, "memory": None, "rate": 5.0},
                "reason": "least CPU",
                "considered": DECIDED["considered"],
                "bestWhile": [],
            },
        ),
        (replace(DECISION, slots=(0, 1)), DECIDED),
        (replace(DECISION, slots=(0, 1), mesh=MESH), {**DECIDED, "mesh": MESH.to_json()}),
        (
            BEGAN,
            {
                "kind": "migration",
                "batch": 5,
                "by": "loop",
                "slots": [0, 1],
                "phase": "began",
                "from": "((a b) c)",
                "to": "(a (b c))",
                "strategy": "moving-state",
                "slotsInPlace": 2,
                "recomputedRows": 7,
                "seconds": 0.25,
            },
        ),
        (
            ENDED,
            {
                "kind": "migration",
                "batch": 6,
                "by": "user",
                "slots": [1],
                "phase": "ended",
                "plan": "(a (b c))",
                "batches": 2,
            },
        ),
        (
            replace(ENDED, given_up="second thoughts"),
            {
                "kind": "migration",
                "batch": 6,
                "by": "user",
                "slots": [1],
                "phase": "given up",
                "plan": "(a (b c))",
                "batches": 2,
                "reason": "second thoughts",
            },
        ),
        (
            Refusal(3, "it is changing already", NEW),
            {"kind": "refused", "batch": 3, "plan": "(a (b c))", "reason": "it is changing already"},
        ),
    ],
    ids=["start", "decision", "on a mesh", "began", "ended", "given up", "refused"],
)
def test_a_record_has_the_keys_that_users_read(record: QueryRecord, form: dict[str, Any]) -> None:
    assert json.loads(json.dumps(record.to_json())) == form
    # Of queries that run together, each record bears the name of its query.
    assert replace(record, query="alerts").to_json() == {**form, "query": "alerts"}
    assert (record.kind, record.batch) == (form["kind"], form["batch"])


def test_moves_to_fewer_slots_do_not_claim_to_save_time() -> None:
    fewer = BalanceDecided(7, "asked for", Rebalancing((Move((1,), 1, 0),), (0.2, 0.1), (0.3, 0.0), 0.0))
    assert fewer.to_json()["reason"] == "the slowest slot has 0.1 s of CPU time more in a batch (asked for)"
