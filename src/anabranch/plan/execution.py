"""The execution models of a query: when rows and results are buffered, and the order in which results are emitted.

`engine.execution` explains and implements the models. To add a model, add its value here; a model that needs more than
these two properties needs a new property.
"""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.errors import SpecError


@dataclass(frozen=True)
class ExecutionModel:
    """An execution model, selected by its name."""

    name: str
    rows_wait: bool = False
    """Rows are buffered until the watermark has passed them."""
    orders_results: bool = False
    """The results of a step are emitted at its end, ordered by their newest event times."""

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
    """Returns the model for a query with count windows: rows are counted once the watermark has passed them."""
    return TOTAL if model.orders_results else ROWS


def execution_model(name: str) -> ExecutionModel:
    """Returns the model with that name."""
    for model in EXECUTION_MODELS:
        if model.name == name:
            return model
    raise SpecError(f"unknown execution model '{name}'", hint=f"one of {', '.join(map(str, EXECUTION_MODELS))}")
