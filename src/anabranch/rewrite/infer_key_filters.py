"""Filter inference: if one member of a key class equals a literal, all members do."""

from __future__ import annotations

from anabranch.functions import bind_call, without_widening
from anabranch.lang.expr import Call, Expr, Literal
from anabranch.plan.key_classes import equal_expressions
from anabranch.plan.logical import Filter, Join, LogicalPlan, relation_names
from anabranch.rewrite.arms import conditions, passes_nothing


def infer_key_filters(plan: LogicalPlan) -> LogicalPlan | None:
    """Copies a filter `key = literal` from one input of a Join to the inputs joined on that key."""
    if not isinstance(plan, Join):
        return None
    fixed: dict[tuple[str, Expr], Literal] = {}
    for child in plan.inputs:
        for condition in conditions(child):
            found = _fixed(condition)
            if found is not None:
                fixed.setdefault((relation_names(child)[0], found[0]), found[1])
    filtered = list(plan.inputs)
    for known in equal_expressions(plan.predicates):
        literal = next((fixed[member] for member in known.members if member in fixed), None)
        if literal is None:
            continue
        for relation, member in known.members:
            if (relation, member) not in fixed:
                position = next(i for i, child in enumerate(filtered) if relation in relation_names(child))
                filtered[position] = _with(filtered[position], member, literal)
    return None if tuple(filtered) == plan.inputs else Join(tuple(filtered), plan.predicates)


def _fixed(condition: Expr) -> tuple[Expr, Literal] | None:
    match condition:
        case Call(function="equal", arguments=(value, Literal() as literal)) if literal.value is not None:
            return without_widening(value), literal
        case Call(function="equal", arguments=(Literal() as literal, value)) if literal.value is not None:
            return without_widening(value), literal
    return None


def _with(child: LogicalPlan, member: Expr, literal: Literal) -> LogicalPlan:
    try:
        condition = bind_call("equal", (member, literal))
    except ValueError:
        # The literal was compared with a decimal of another precision; combined with this one it needs too many digits.
        return child
    return child if condition in conditions(child) or passes_nothing(child) else Filter(child, condition)
