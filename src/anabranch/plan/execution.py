"""The execution models that a query may be run in, by name; what they mean stands in `engine.execution`."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from anabranch.errors import SpecError

ExecutionModel: TypeAlias = Literal["un-synchronised", "semi-synchronised", "totally-synchronised"]
EXECUTION_MODELS: tuple[ExecutionModel, ...] = get_args(ExecutionModel)
DEFAULT_EXECUTION: ExecutionModel = "un-synchronised"


def execution_model(name: str) -> ExecutionModel:
    """The model of that name."""
    for model in EXECUTION_MODELS:
        if model == name:
            return model
    raise SpecError(f"unknown execution model '{name}'", hint=f"one of {', '.join(EXECUTION_MODELS)}")


def rows_wait(model: ExecutionModel) -> bool:
    """True when rows wait for the watermark before the plan sees them."""
    return model == "totally-synchronised"
