"""The execution models that a query may run in: what waits for what, and which order results come in.

`engine.execution` explains the models and does the waiting and ordering. To add a model, add its value here; a model
that needs more than these two properties needs a property of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.errors import SpecError


@dataclass(frozen=True)
class ExecutionModel:
    """One model, known to users by its name."""

    name: str
    rows_wait: bool = False
    """Rows wait for the watermark before the plan sees them."""
    orders_results: bool = False
    """The results of a step wait for its end, and come in the order of their newest times."""

    def __str__(self) -> str:
        return self.name


DEFAULT_EXECUTION = ExecutionModel("un-synchronised")
SEMI = ExecutionModel("semi-synchronised", orders_results=True)
ROWS = ExecutionModel("row-synchronised", rows_wait=True)
TOTAL = ExecutionModel("totally-synchronised", rows_wait=True, orders_results=True)
EXECUTION_MODELS = (
    DEFAULT_EXECUTION,
    SEMI,
    ROWS,
    TOTAL,
)


def for_counting(model: ExecutionModel) -> ExecutionModel:
    """The model in which a query with count windows runs: rows are counted once the watermark has passed them."""
    return TOTAL if model.orders_results else ROWS


def execution_model(name: str) -> ExecutionModel:
    """The model of that name."""
    for model in EXECUTION_MODELS:
        if model.name == name:
            return model
    raise SpecError(f"unknown execution model '{name}'", hint=f"one of {', '.join(map(str, EXECUTION_MODELS))}")
