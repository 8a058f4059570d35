"""Logical plans: the meaning of a query, independent of how it runs.

Nodes are immutable and validate themselves on construction. A join is n-ary. The binder builds
`Project(Filter(Join(Source…)))`, with an `OuterJoin` around the join for each outer, semi and anti join, and an
`Aggregate` and a second `Filter` (HAVING) above for grouped queries. The rules in `rewrite/` push filters and
projections down to the sources; `plan.normal_form` derives the normal form from the result.

Invariant: an ill-formed plan cannot be constructed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

import pyarrow as pa

from anabranch.errors import PlanError
from anabranch.functions import is_nullable
from anabranch.lang.expr import GROUPED, AggregateCall, Column, Expr, columns
from anabranch.lang.schema import TIMESTAMP, Field, Schema
from anabranch.lang.window import Window

BOUNDARY = Column(GROUPED, "boundary", TIMESTAMP, nullable=False)
"""The boundary of a grouped result; WINDOW_END() in CQL."""
ROW_NUMBER = Column(GROUPED, "row_number", pa.int64(), nullable=False)
"""The place of a ranked row in its group, from 1."""


@dataclass(frozen=True)
class Source:
    """The rows of a stream under an alias while they are inside their window, or the rows of a table."""

    relation: str
    stream: str
    schema: Schema
    event_time: str
    window: Window
    disorder: int = 0
    is_table: bool = False
    is_result: bool = False
    """True if the stream has the results of another query."""
    subquery: Subquery | None = None
    """That query, if it is a subquery in FROM and has not been compiled yet."""
    others: tuple[Subquery, ...] = ()
    """The other queries of a UNION ALL in FROM, likewise."""
    branches: tuple[str, ...] = ()
    """The queries whose results a UNION ALL has, once they have been compiled."""
    behind: int = 0
    """For results: how far below the watermark of their query the event times of future results can be."""
    is_implied: bool = False
    """True if the window was not written but follows from conditions over event times."""

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(Column(self.relation, f.name, f.type, f.nullable) for f in self.schema)


@dataclass(frozen=True)
class Subquery:
    """A query in FROM: its own text, and its plan as bound."""

    text: str
    plan: LogicalPlan


@dataclass(frozen=True)
class Filter:
    """The rows for which the predicate is true."""

    input: LogicalPlan
    predicate: Expr

    def __post_init__(self) -> None:
        _require_columns(self.input, self.predicate)

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.input.columns


@dataclass(frozen=True)
class Output:
    """One named expression of a projection."""

    name: str
    expression: Expr

    @property
    def field(self) -> Field:
        return Field(self.name, self.expression.type)


@dataclass(frozen=True)
class Project:
    """The results of the query: named expressions, in order."""

    input: LogicalPlan
    outputs: tuple[Output, ...]

    def __post_init__(self) -> None:
        for output in self.outputs:
            _require_columns(self.input, output.expression)

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(Column("", output.name, output.expression.type) for output in self.outputs)

    @property
    def schema(self) -> Schema:
        return Schema(tuple(output.field for output in self.outputs))


@dataclass(frozen=True)
class Prune:
    """Keeps only the columns that operators above read."""

    input: LogicalPlan
    kept: tuple[Column, ...]

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.kept


@dataclass(frozen=True)
class Join:
    """Combinations of one row per input for which all predicates are true, inside the windows."""

    inputs: tuple[LogicalPlan, ...]
    predicates: tuple[Expr, ...] = ()

    def __post_init__(self) -> None:
        names = [name for child in self.inputs for name in relation_names(child)]
        if len(names) != len(set(names)):
            raise PlanError("two inputs of a join have the same relation name", hint="give each an alias of its own")

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(column for child in self.inputs for column in child.columns)


class SideKind(Enum):
    """The treatment of combinations with and without a matching row of a side."""

    LEFT = "left"
    """It is extended by each matching row, or by NULLs."""
    FULL = "full"
    """Like LEFT; in addition, a row of the side that matches no combination is emitted with NULLs for the combination.
    """
    SEMI = "semi"
    """It is kept, once, if it has a match."""
    ANTI = "anti"
    """It is kept if it has no match."""

    @property
    def extends(self) -> bool:
        """True if the columns of the side are columns of the result."""
        return self in (SideKind.LEFT, SideKind.FULL)


@dataclass(frozen=True)
class OuterJoin:
    """The combinations of the input, by whether rows of the side match them inside the windows."""

    input: LogicalPlan
    side: LogicalPlan
    kind: SideKind
    predicates: tuple[Expr, ...] = ()

    @property
    def columns(self) -> tuple[Column, ...]:
        return (*self.input.columns, *self.side.columns) if self.kind.extends else self.input.columns


@dataclass(frozen=True)
class Aggregate:
    """One row per group and boundary, over the combinations valid at that boundary."""

    input: LogicalPlan
    keys: tuple[Column, ...]
    """The columns of GROUPED for the key expressions."""
    key_expressions: tuple[Expr, ...]
    results: tuple[Column, ...]
    """The columns of GROUPED for the aggregates."""
    aggregates: tuple[AggregateCall, ...]
    slide: int
    lag: int = 0
    """1 if windows do not include their end."""
    gap: int = 0
    """The gap of session windows; 0 for all other windows."""

    @property
    def columns(self) -> tuple[Column, ...]:
        return (BOUNDARY, *self.keys, *self.results)


LogicalPlan: TypeAlias = Source | Filter | Project | Prune | Join | OuterJoin | Aggregate


def result_schema(outputs: Iterable[Output]) -> Schema:
    """Returns the columns of the results of a query, as other queries read them."""
    return Schema(tuple(Field(each.name, each.expression.type, is_nullable(each.expression)) for each in outputs))


def with_sources(plan: LogicalPlan, change: Callable[[Source], Source]) -> LogicalPlan:
    """Returns the plan with every source changed."""
    match plan:
        case Source():
            return change(plan)
        case Join(inputs=several):
            return replace(plan, inputs=tuple(with_sources(child, change) for child in several))
        case OuterJoin(input=one, side=other):
            return replace(plan, input=with_sources(one, change), side=with_sources(other, change))
        case Filter(input=one) | Project(input=one) | Prune(input=one) | Aggregate(input=one):
            return replace(plan, input=with_sources(one, change))


def inputs(plan: LogicalPlan) -> tuple[LogicalPlan, ...]:
    match plan:
        case Source():
            return ()
        case Join(inputs=several):
            return several
        case OuterJoin(input=one, side=other):
            return (one, other)
        case Filter(input=one) | Project(input=one) | Prune(input=one) | Aggregate(input=one):
            return (one,)


def sources_of(plan: LogicalPlan) -> dict[str, Source]:
    """Returns the sources below a plan by relation, left to right."""
    if isinstance(plan, Source):
        return {plan.relation: plan}
    return {name: source for child in inputs(plan) for name, source in sources_of(child).items()}


def core_relations(plan: LogicalPlan) -> frozenset[str] | None:
    """Returns the relations inside all outer joins; None if a full join is among these."""
    while True:
        match plan:
            case OuterJoin(kind=SideKind.FULL):
                return None
            case OuterJoin(input=below) | Filter(input=below):
                plan = below
            case _:
                return frozenset(relation_names(plan))


def relation_names(plan: LogicalPlan) -> tuple[str, ...]:
    """Returns the aliases below a plan, left to right."""
    if isinstance(plan, Source):
        return (plan.relation,)
    return tuple(name for child in inputs(plan) for name in relation_names(child))


def render(plan: LogicalPlan, indent: str = "") -> str:
    """Returns the plan as indented text, one node per line."""
    deeper = indent + "  "
    below = "".join("\n" + render(child, deeper) for child in inputs(plan))
    match plan:
        case Source():
            if plan.subquery is not None:
                several = "".join("\n" + render(each.plan, deeper) for each in (plan.subquery, *plan.others))
                return f"{indent}Results {plan.window} AS {plan.relation}{several}"
            return f"{indent}Source {plan.stream} {plan.window} AS {plan.relation}"
        case Filter():
            return f"{indent}Filter {plan.predicate}{below}"
        case Project():
            listed = ", ".join(f"{output.expression} AS {output.name}" for output in plan.outputs)
            return f"{indent}Project {listed}{below}"
        case Prune():
            return f"{indent}Prune {', '.join(str(column) for column in plan.kept)}{below}"
        case Join():
            on = " AND ".join(str(predicate) for predicate in plan.predicates)
            return f"{indent}Join{' ON ' + on if on else ''}{below}"
        case OuterJoin():
            on = " AND ".join(str(predicate) for predicate in plan.predicates)
            return f"{indent}{plan.kind.value.capitalize()}Join{' ON ' + on if on else ''}{below}"
        case Aggregate():
            keys = ", ".join(str(key) for key in plan.key_expressions)
            listed = ", ".join(str(aggregate) for aggregate in plan.aggregates)
            pace = f"IN SESSIONS OF {plan.gap} us" if plan.gap else f"EVERY {plan.slide} us"
            return f"{indent}Aggregate {listed} BY {keys or '()'} {pace}{below}"


def _require_columns(plan: LogicalPlan, expr: Expr) -> None:
    known = {(column.relation, column.name) for column in plan.columns}
    for column in columns(expr):
        if (column.relation, column.name) not in known:
            raise PlanError(f"expression '{expr}' reads '{column}', which its input does not have")
