"""The registry of migration strategies, by name. Workers load this module, so it must not import the cost packages.

Invariant: an unknown name is refused wherever a user can enter it, with the same message.
"""

from __future__ import annotations

from anabranch.errors import MigrationError
from anabranch.migrate.strategies.moving_state import MovingState
from anabranch.migrate.strategies.none import NoStrategy
from anabranch.migrate.strategies.parallel_track import InParallel
from anabranch.migrate.strategies.spread import Spread
from anabranch.migrate.strategies.strategy import Strategy
from anabranch.plan.check import validate
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import PhysicalPlan
from anabranch.plan.query import Grouping

_STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy for strategy in (NoStrategy(), MovingState(), InParallel(), Spread())
}


def register(strategy: Strategy) -> None:
    """Adds a strategy, or replaces the one with its name; every process that runs engines must do so."""
    _STRATEGIES[strategy.name] = strategy


def forget(name: str) -> None:
    """Removes a strategy."""
    del _STRATEGIES[name]


def strategy_names() -> tuple[str, ...]:
    """Returns the names of all strategies."""
    return tuple(_STRATEGIES)


def strategies() -> tuple[Strategy, ...]:
    """Returns all strategies."""
    return tuple(_STRATEGIES.values())


def strategy_named(name: str) -> Strategy:
    """Returns the strategy with this name; raises a MigrationError if there is none."""
    if name not in _STRATEGIES:
        raise MigrationError(f"no migration strategy '{name}'", hint=f"use one of auto, {', '.join(_STRATEGIES)}")
    return _STRATEGIES[name]


def check_migration(
    old: PhysicalPlan, new: PhysicalPlan, graph: JoinGraph, strategy: str, grouping: Grouping | None = None
) -> None:
    """Refuses a change that the strategy does not support, or a plan of another query."""
    validate(new, graph, grouping)
    strategy_named(strategy).check(old, new, graph)
