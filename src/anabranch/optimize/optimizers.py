"""The registry of optimizers, by name.

An optimizer is a function from a problem (join graph, statistics, budget, objective, hints) to a proposal or to the
bound that no plan keeps. It prices plans with `problem.candidate` and returns through `settle`, which enforces hints
and budget. `choose` runs every optimizer of this registry and settles their candidates together; the name of an
optimizer is the origin of its candidates. A user may select one of `NAMED` (`hints.optimizer`), which then runs alone.

Invariant: an optimizer is pure. It reads no clock, no file and no global state.

To add an optimizer, write a module with such a function, register it here, and test it;
`tests/contract/test_optimizers.py` checks every optimizer of the registry against the contract.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from anabranch.optimize import heuristics, jtree_optimizer, local_rates
from anabranch.optimize.problem import Problem
from anabranch.optimize.proposals import Infeasible, Proposal

Optimizer: TypeAlias = Callable[[Problem], Proposal | Infeasible]

OPTIMIZERS: Mapping[str, Optimizer] = {
    "mjoin ordering": heuristics.mjoin,
    "min-state": heuristics.smallest_tree,
    "state-selection": heuristics.state_selection,
    "state-removal": heuristics.state_removal,
    "jtree-finder": jtree_optimizer.jtree_finder,
}

NAMED: Mapping[str, Optimizer] = {
    **OPTIMIZERS,
    "local-rate": local_rates.local_rate,
    "local-time": local_rates.local_time,
}
"""The optimizers that a user may select; the local ones run only then, because the search covers all trees."""
