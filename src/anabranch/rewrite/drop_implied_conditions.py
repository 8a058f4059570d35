"""Drops conditions over event times that windows imply, where the windows were derived from such conditions.

`c.ts BETWEEN i.ts AND i.ts + INTERVAL 20 SECONDS` gives `i` a range of 20 seconds and `c` one of 0; every match checks
these, so the condition need not be checked again. Limit: two relations that no equality connects keep the condition,
because it is the only index of their join.
"""

from __future__ import annotations

from dataclasses import replace

from anabranch.lang.expr import Expr, relations
from anabranch.plan.intervals import event_times
from anabranch.plan.key_classes import key_sides
from anabranch.plan.logical import Join, LogicalPlan, OuterJoin, core_relations, relation_names, sources_of
from anabranch.plan.pairwise import distances


def drop_implied_conditions(plan: LogicalPlan) -> LogicalPlan | None:
    """Removes the predicates of a Join or OuterJoin that implied windows repeat."""
    match plan:
        case Join(predicates=predicates):
            kept = tuple(each for each in predicates if not _is_implied(plan, each, predicates))
        case OuterJoin(predicates=predicates):
            # A combination without a row of an earlier side must not match, and a predicate on the combination alone
            # decides whether it has any match.
            core = core_relations(plan.input) or frozenset()
            own = frozenset(relation_names(plan.side))
            kept = tuple(
                each
                for each in predicates
                if not (relations(each) & own and relations(each) <= core | own and _is_implied(plan, each, predicates))
            )
        case _:
            return None
    return None if kept == predicates else replace(plan, predicates=kept)


def _is_implied(plan: LogicalPlan, predicate: Expr, predicates: tuple[Expr, ...]) -> bool:
    sources = sources_of(plan)
    equal = [relations(each) for each in predicates if key_sides(each) is not None]
    found = [] if key_sides(predicate) is not None else list(distances(predicate, event_times(sources)))
    return bool(found) and all(
        sources[older].is_implied and sources[older].window.reach <= distance and {older, newer} in equal
        for older, newer, distance in found
    )
