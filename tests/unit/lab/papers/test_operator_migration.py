"""The protocols of Zhu 2006, Chapter 19, as machines without I/O."""

from __future__ import annotations

import numpy as np
import pytest

from lab.balance_operator_level import NEW, OLD, Rows, pairs_born, traffic
from lab.papers.operator_migration import (
    Delivered,
    Machine,
    Manager,
    Message,
    Strategy,
    bytes_to_ship,
    choose_strategy,
    deliver,
)

GIVEN = traffic(30.0, 15.0)


def migrate(strategy: Strategy) -> tuple[Manager, dict[str, Machine], list[Delivered]]:
    machines = {
        name: Machine(name, {state: GIVEN.state_bytes(state) for state in OLD.on(name)}, time=5.0 + number)
        for number, name in enumerate(OLD.machines)
    }
    manager = Manager(OLD, NEW, strategy)
    log = deliver(manager, machines.values(), latency=0.001, bandwidth=1e6, purging=30.0)
    return manager, machines, log


def kinds(log: list[Delivered]) -> list[str]:
    return list(dict.fromkeys(each.message.kind for each in log))


def test_moving_state_synchronises_ships_what_exists_and_computes_the_rest() -> None:
    manager, machines, log = migrate("moving-state")
    assert manager.is_over
    assert kinds(log) == [
        *("RequestSyncTime", "LatestTime", "SyncTime", "ExecutionSynced", "NewSubplan", "PlanChanged", "FillStates"),
        *("RequestState", "StateShipped", "StateFilled", "Connect", "Connected", "Activate", "Activated"),
    ]
    assert manager.sync_time == 6.0
    assert all(machine.time == 6.0 and machine.is_active for machine in machines.values())
    assert sorted(machines["m1"].states) == ["A", "BC"]
    assert machines["m1"].recomputed == ("BC",)
    assert sorted(machines["m2"].states) == ["B", "C"]
    assert machines["m2"].recomputed == ()
    shipped = sum(machine.shipped for machine in machines.values())
    assert shipped == bytes_to_ship(OLD, NEW, GIVEN, "moving-state") == GIVEN.state_bytes("B") + GIVEN.state_bytes("C")


def test_parallel_track_ships_no_state_and_lasts_until_old_rows_are_purged() -> None:
    manager, machines, log = migrate("parallel-track")
    assert manager.is_over
    assert kinds(log) == [
        *("DeactivateBox", "BoxDeactivated", "NewBox", "BoxConnected", "StartBoth", "OldPurged", "RemoveOldBox"),
        "OldBoxRemoved",
    ]
    assert not any(machine.shipped for machine in machines.values())
    assert 30.0 < log[-1].at < 30.1


def test_the_choice_is_the_strategy_that_ships_less() -> None:
    assert choose_strategy(OLD, NEW, GIVEN) == "moving-state"
    # Large states, and hardly any new rows.
    fallen = traffic(100.0, 60.0, 5.0)
    assert bytes_to_ship(OLD, NEW, fallen, "parallel-track") < bytes_to_ship(OLD, NEW, fallen, "moving-state")
    assert choose_strategy(OLD, NEW, fallen) == "parallel-track"


def test_a_message_that_does_not_belong_there_is_refused() -> None:
    manager = Manager(OLD, NEW, "moving-state")
    manager.begin()
    with pytest.raises(ValueError, match="Activated of m1 came where LatestTime was expected"):
        manager.receive(Message("Activated", "m1", "manager"))
    with pytest.raises(ValueError, match="does not know"):
        Machine("m1", {}).receive(Message("Hello", "manager", "m1"))


def test_pairs_are_counted_by_their_later_row() -> None:
    left = Rows(np.array([-3.0, -1.0, 2.0]), np.array([1, 1, 2]))
    right = Rows(np.array([0.5, 1.0, 2.5, 9.0]), np.array([1, 3, 2, 2]))
    assert pairs_born(left, right, 2.0, 0.0) == 2
    assert pairs_born(left, right, 4.0, 0.0) == 3
    assert pairs_born(left, right, 4.0, 1.0) == 1
    assert pairs_born(right, left, 4.0, 1.0) == 1
