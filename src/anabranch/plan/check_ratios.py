"""What a check costs inside Spark, in what the same check costs in the engine: a ratio for each kind of dear function.

Engine and Spark have different evaluators, so a ratio holds for a function and a machine, not for all checks.
`anabranch calibrate` measures the ratios of this machine (`spark_checks`); what was not measured is as built in.

Law: the ratio of a check that calls one dear function, once, is that of its kind. One that calls several has the mean,
each weighing what it is assumed to cost in the engine.

Limit: what a matcher takes depends on the pattern and on the text. A ratio is that of one pattern on one kind of text;
patterns that begin with `.*`, on which Java's matcher begins anew at every letter, have their own. What a function of
the user's own costs counts as equal in both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from anabranch.errors import StatisticsError
from anabranch.expr import Call, Expr, Literal, own_functions, walk
from anabranch.plan.dearness import ASSUMED_FUNCTION, DEAR_CALLS


@dataclass(frozen=True)
class CheckRatios:
    """What checks cost inside Spark, in checks of the engine, by the function that they call."""

    rlike: float
    rlike_any: float
    """`RLIKE` with a pattern that begins with `.*`."""
    like: float
    regexp_extract: float
    regexp_replace: float
    concat: float
    substring: float

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not 0 < value < math.inf:
                raise StatisticsError(
                    f"the ratio of a check with '{name}' is {value:g}", hint="run 'anabranch calibrate' again"
                )

    @classmethod
    def from_names(cls, ratios: Mapping[str, float]) -> CheckRatios:
        """The ratios that some numbers stand for; those not named are built in, unknown ones are left out."""
        return cls(**{name: float(ratios.get(name, usual)) for name, usual in asdict(BUILT_IN).items()})

    def beside_built_in(self) -> dict[str, float]:
        """The ratios that are not the built-in ones."""
        usual = asdict(BUILT_IN)
        return {name: value for name, value in asdict(self).items() if value != usual[name]}

    def of(self, predicate: Expr) -> float:
        """What a check of a predicate costs inside Spark, in checks of the engine."""
        engine = spark = sum(ASSUMED_FUNCTION[each.kind] for each in own_functions(predicate))
        ratios = asdict(self)
        for node in walk(predicate):
            if isinstance(node, Call) and (kind := kind_of(node)) in ratios:
                engine += DEAR_CALLS[node.function]
                spark += DEAR_CALLS[node.function] * ratios[kind]
        return spark / engine if engine else 1.0


BUILT_IN = CheckRatios(
    rlike=2.3,
    rlike_any=2.3,
    like=6.0,
    regexp_extract=7.0,
    regexp_replace=2.2,
    concat=2.6,
    substring=3.2,
)
"""As measured on an ordinary machine, on rows of 40 letters. For patterns that begin with `.*` it is a floor, the ratio
of the others: one of them cost 72 times as much, too much to assume of all where nothing was measured."""


def kind_of(call: Call) -> str:
    """The kind of check that a call is: its function, unless its pattern makes it another."""
    pattern = call.arguments[1] if call.function == "rlike" else None
    is_any = isinstance(pattern, Literal) and isinstance(pattern.value, str) and pattern.value.startswith(".*")
    return "rlike_any" if is_any else call.function
