"""Joins that queries of a set have in common: the results of a shared join, and the residual predicates of each query.

A plan writes a shared join in braces, `({a b} c)`. Queries whose plans have an equal part in braces compute it once;
they are its *users*. The join is computed with the weakest demands of its users: the key classes and thetas that all of
them have among its relations, and for each relation the longest of their windows and the conjuncts that all their
filters have. The remaining predicates of a user are its *rest*:

- key equalities and thetas among the relations of the join, which the user checks on every combination that it takes
  from the join, so that its states above hold what they would hold without sharing;
- windows and filters (`ResidualPredicates`), which the user applies to its finished combinations, as it does with base
  states.

Invariant: a shared join finds every combination that one of its users needs, and after its rest a user has exactly the
combinations that it would have found alone. The users of a join are determined by the plans, so a query starts or stops
sharing by a plan change.

Limit: a predicate that may fail, such as a division, is not shared: a user might evaluate it on combinations that
another of its predicates would have excluded. A key that two users compare by different relations of the join would
need two indexes of one name. Both are rejected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from anabranch.errors import BundleError, PlanError
from anabranch.lang.expr import Expr, can_fail_in_join, conjunction, conjuncts
from anabranch.lang.window import Window
from anabranch.plan.join_graph import JoinGraph, KeyClass, Theta
from anabranch.plan.mesh import Mesh, Plan
from anabranch.plan.physical import JoinNode, Shared, shared_parts
from anabranch.plan.query import Query, titled
from anabranch.plan.query_set import Member, QuerySet, ResidualPredicates, common_conjuncts, longest_window
from anabranch.plan.text import parse

SHARING = "moving-state"
"""The migration strategy by which queries start and stop sharing joins."""


@dataclass(frozen=True)
class Equality:
    """Two relations that a user compares by a key but the join does not."""

    key: KeyClass
    left: str
    right: str


@dataclass(frozen=True)
class Rest:
    """The predicates of one user beyond those of a shared join."""

    equalities: tuple[Equality, ...] = ()
    thetas: tuple[int, ...] = ()
    """Positions in the user's join graph."""
    residuals: tuple[ResidualPredicates, ...] = ()
    shift: int | None = None
    """If all of the user's windows are shorter than those of the join by the same amount: that amount in microseconds.
    """


@dataclass(frozen=True)
class CommonJoin:
    """A shared join with the weakest demands of its users."""

    shared: Shared
    member: Member
    """The join as a query without outputs, over the relations of the set."""
    rests: Mapping[str, Rest]
    """The users, by name."""
    outside: frozenset[str]
    """Relations that some user joins with the combinations; empty if the join is the last one for every user."""
    readers: Mapping[str, frozenset[str]]
    """For each key of a user, the relations of the join that have its code for all users."""

    def is_served_by(self, other: CommonJoin) -> bool:
        """True if the other join finds and keeps everything that this one must, under the same codes."""
        return (
            self.member == other.member
            and self.outside <= other.outside
            and bool(self.outside) == bool(other.outside)
            and all(_reader(self, key) == _reader(other, key) for key in self.readers.keys() & other.readers.keys())
        )


def shares(plan: Plan) -> bool:
    """True if some join of the plan is shared."""
    return not isinstance(plan, Mesh) and bool(shared_parts(plan))


def shared_join(text: str) -> Shared:
    """Returns the shared join that a text describes, with or without braces."""
    plan = parse(text)
    if isinstance(plan, Shared):
        return plan
    if not isinstance(plan, JoinNode):
        raise PlanError(f"'{text}' is not a join that can be shared", hint="write a join such as '(a b)'")
    return Shared(plan)


def common_joins(queries: QuerySet, plans: Mapping[str, Plan]) -> dict[Shared, CommonJoin]:
    """Returns the shared joins of the plans of a set; raises BundleError if one cannot be shared."""
    users: dict[Shared, list[Member]] = {}
    for member in queries.members:
        plan = plans[member.name]
        for shared in () if isinstance(plan, Mesh) else shared_parts(plan):
            users.setdefault(shared, []).append(member)
    return {shared: common_join(shared, several) for shared, several in users.items()}


def common_join(shared: Shared, users: Sequence[Member]) -> CommonJoin:
    """Returns the join with the weakest demands of these users; raises BundleError if they cannot share it."""
    inside = frozenset(shared.relations)
    for user in users:
        _refuse_what_may_fail(shared, user)
        _refuse_other_sources(shared, user)
    first = users[0].query.graph
    keys = tuple(key for key in (_common_key(key, users, inside) for key in first.keys) if key is not None)
    thetas = tuple(
        theta
        for theta in first.thetas
        if theta.relations <= inside and all(theta in user.query.graph.thetas for user in users)
    )
    relations = tuple(relation for relation in first.relations if relation.name in inside)
    graph = JoinGraph(relations, keys, thetas)
    residuals = tuple(common for name in graph.names if (common := _common_residual(name, users, graph)) is not None)
    member = Member(str(shared), Query(str(shared), graph, ()), residuals)
    rests = {user.name: _rest(user, member, inside) for user in users}
    outside = frozenset(name for user in users for name in user.query.graph.names) - inside
    return CommonJoin(shared, member, rests, outside, _readers(shared, users, inside))


def _common_key(key: KeyClass, users: Sequence[Member], inside: frozenset[str]) -> KeyClass | None:
    """Returns the key over the relations of the join that all users equate by it, or None."""
    equated = inside & key.relations
    for user in users:
        own = next((other for other in user.query.graph.keys if other.name == key.name), None)
        equated &= own.relations if own is not None else frozenset()
    members = tuple((name, expression) for name, expression in key.members if name in equated)
    return replace(key, members=members) if len(members) > 1 else None


def _common_residual(relation: str, users: Sequence[Member], graph: JoinGraph) -> ResidualPredicates | None:
    """Returns the window and filter that all users have on a relation beyond those of the set, or None."""
    several = [_residual_of(user, relation) for user in users]
    demands = [residual for residual in several if residual is not None]
    if len(demands) < len(several):
        return None
    window = longest_window([residual.window for residual in demands])
    is_shorter = window != graph.relation(relation).window and all(residual.is_shorter for residual in demands)
    condition = conjunction(common_conjuncts([_parts(residual.filter) for residual in demands]))
    if not is_shorter and condition is None:
        return None
    window = window if is_shorter else graph.relation(relation).window
    return ResidualPredicates(relation, window.reach, is_shorter, condition, window)


def _rest(user: Member, common: Member, inside: frozenset[str]) -> Rest:
    graph = user.query.graph
    joined = {key.name: key.relations for key in common.query.graph.keys}
    equalities = []
    for key in graph.keys:
        mine = [name for name, _ in key.members if name in inside]
        known = joined.get(key.name, frozenset())
        # Compare each with the first relation that the join equates, or else with the first relation.
        start = next((name for name in mine if name in known), mine[0] if mine else "")
        equalities += [Equality(key, start, name) for name in mine if name != start and name not in known]
    thetas = tuple(
        position
        for position, theta in enumerate(graph.thetas)
        if theta.relations <= inside and theta not in common.query.graph.thetas
    )
    residuals = [
        _beyond(residual, _residual_of(common, residual.relation))
        for residual in user.residuals
        if residual.relation in inside
    ]
    left = tuple(each for each in residuals if each is not None)
    return Rest(tuple(equalities), thetas, left, _shift(left, common))


def _shift(rest: Sequence[ResidualPredicates], common: Member) -> int | None:
    """Returns how much shorter all windows of a user are than those of the join; None if the amounts differ.

    The deadline of a combination is the least of event time + range, so it moves by the same amount.
    """
    shorter = {residual.relation: residual.window for residual in rest if residual.is_shorter}
    graph = common.query.graph
    if shorter.keys() != set(graph.names):
        return None
    found = set()
    for name, window in shorter.items():
        residual = _residual_of(common, name)
        longer = residual.window if residual is not None and residual.is_shorter else graph.relation(name).window
        if type(window) is not Window or type(longer) is not Window or graph.relation(name).is_derived:
            return None
        if window.range is None or longer.range is None:
            return None
        found.add(longer.range - window.range)
    return found.pop() if len(found) == 1 else None


def _beyond(own: ResidualPredicates, common: ResidualPredicates | None) -> ResidualPredicates | None:
    """Returns the residual predicates of a user beyond those that the join applies."""
    is_shorter = own.is_shorter
    if common is not None and common.is_shorter:
        is_shorter = replace(own.window, slide=None) != common.window
    applied = () if common is None else _parts(common.filter)
    condition = conjunction(tuple(part for part in _parts(own.filter) if part not in applied))
    return replace(own, is_shorter=is_shorter, filter=condition) if is_shorter or condition is not None else None


def _readers(shared: Shared, users: Sequence[Member], inside: frozenset[str]) -> dict[str, frozenset[str]]:
    """Returns for each key the relations of the join whose codes every user with that key can be looked up by."""
    readers: dict[str, frozenset[str]] = {}
    for user in users:
        for key in user.query.graph.keys:
            mine = key.relations & inside
            if not mine:
                continue
            readers[key.name] = readers.get(key.name, mine) & mine
            if not readers[key.name]:
                raise BundleError(
                    f"join '{shared}' cannot be shared by {_names(users)}",
                    detail=f"they compare different relations of it by '{key}'",
                    hint="share it between fewer queries, or share a smaller join",
                )
    return readers


def _refuse_what_may_fail(shared: Shared, user: Member) -> None:
    inside = frozenset(shared.relations)
    met: list[Theta] = [theta for theta in user.query.graph.thetas if theta.relations <= inside]
    for theta in met:
        if can_fail_in_join(theta.predicate):
            raise BundleError(
                f"{titled(user.name)} cannot share join '{shared}'",
                detail=f"'{theta}' may fail, and could be evaluated on rows that the query alone would not compare",
                hint="remove the braces",
            )


def _refuse_other_sources(shared: Shared, user: Member) -> None:
    for name in shared.relations:
        relation = user.query.graph.relation(name)
        if relation.is_table or relation.is_result or relation.is_derived:
            raise BundleError(
                f"{titled(user.name)} cannot share join '{shared}'",
                detail=f"'{name}' is not a stream, and only joins of streams are shared",
                hint="remove the braces",
            )


def _reader(common: CommonJoin, key: str) -> str:
    return next(name for name in common.shared.relations if name in common.readers[key])


def _residual_of(member: Member, relation: str) -> ResidualPredicates | None:
    return next((residual for residual in member.residuals if residual.relation == relation), None)


def _parts(condition: Expr | None) -> tuple[Expr, ...]:
    return () if condition is None else conjuncts(condition)


def _names(users: Sequence[Member]) -> str:
    return ", ".join(f"'{user.name}'" for user in users)
