"""Chooses the plans of queries that run together: shared joins, joint limits, the number of slots.

Invariant: without shared joins and joint limits, each query has the plan that it would have alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from anabranch.balance.allocation import Allocation, fewest_slots, over_limits
from anabranch.balance.first import FirstTable
from anabranch.cost.estimates import traffic
from anabranch.cost.host import need_together
from anabranch.cost.shares import MemberModel, from_own_model, in_agreement, of_common_join
from anabranch.errors import NoFeasiblePlan, SpecError
from anabranch.lang.sizes import size_text
from anabranch.optimize import Budget, Choice, Infeasible
from anabranch.optimize.choice import within
from anabranch.optimize.joint import Contender, JointChoice, choose_together
from anabranch.optimize.proposals import over_budget
from anabranch.plan.mesh import Mesh, Plan
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.physical import shared_parts
from anabranch.plan.query_set import QuerySet, partitioning_of
from anabranch.plan.slots import SlotRange
from anabranch.planning.choosing import first_plan, headline, proposal
from anabranch.planning.infeasible import over_joint_limits
from anabranch.planning.options import TOGETHER, PlanOptions, SetPlanOptions

MOST_PLANS = 40
"""The maximum number of plans per query that the joint choice of a set considers."""


def decide_together(
    queries: QuerySet,
    choices: Mapping[str, Choice],
    plan_options: Mapping[str, PlanOptions],
    together: SetPlanOptions = TOGETHER,
    *,
    adapting: Collection[str] = (),
    slots: int = 1,
) -> JointChoice | None:
    """Returns the plans of a set, chosen together from the choices of its queries; None if there is nothing to choose.

    A query takes part in sharing if its plan is free (`plan: auto` without hints) and no mesh was chosen for it; by
    default, only if it is among those that are `adapting`. Raises NoFeasiblePlan if no plans keep the joint limits.
    """
    if not queries.is_named or any(isinstance(choice.answer, Infeasible) for choice in choices.values()):
        return None
    sharing = [name for name in queries.names if together.may_share(name in adapting)]
    if len(sharing) < 2 and together == TOGETHER:
        return None
    own = [from_own_model(member, choices[member.name].model) for member in queries.members]
    member_models = in_agreement(own)
    contenders = [
        _contender(each, choices[each.name], plan_options[each.name], each.name in sharing) for each in member_models
    ]
    by_name = {each.name: each for each in member_models}
    budget = joint_budget(choices, together, slots)
    joint = choose_together(contenders, partial(of_common_join, member_models=by_name), budget)
    if not joint.fits:
        raise over_joint_limits(joint)
    return joint


def joint_budget(choices: Mapping[str, Choice], together: SetPlanOptions, slots: int) -> Budget:
    """Returns the budget per slot for the plans of a set: the joint limits less the host's resources for all."""
    budget = Budget(together.cpu, together.memory, slots)
    needs = [each.host for each in choices.values() if each.host is not None]
    return within(budget, need_together(needs)) if needs else budget


@dataclass(frozen=True)
class RunChoice:
    """The choices for a run: the plan of each query for itself, and the plans of all together."""

    choices: Mapping[str, Choice]
    joint: JointChoice | None = None
    """The plans chosen together; None if there was nothing to choose."""
    allocation: Allocation | None = None
    """The number of slots, if the run had to determine it."""

    @property
    def as_run(self) -> dict[str, Choice]:
        """The choices of the queries with the plans of the joint choice."""
        if self.joint is None:
            return dict(self.choices)
        written = {name: plan for name, plan in self.joint.plans.items() if shared_parts(plan)}
        return {name: replace(each, written=written.get(name, each.written)) for name, each in self.choices.items()}

    def headlines(self) -> list[str]:
        """Returns one line per query with its plan and the reason, then the number of slots and the shared joins."""
        lines = [f"{name}: {headline(choice)}" if name else headline(choice) for name, choice in self.choices.items()]
        lines += [] if self.allocation is None else [str(self.allocation)]
        return lines if self.joint is None else [*lines, *shared_lines(self.joint)]

    @property
    def plans(self) -> dict[str, Plan]:
        """The first plan of each query."""
        plans = {name: first_plan(choice) for name, choice in self.choices.items()}
        if self.joint is not None:
            plans |= {name: plan for name, plan in self.joint.plans.items() if not isinstance(plans[name], Mesh)}
        return plans


def allocate(
    queries: QuerySet,
    allowed: SlotRange | None,
    choose_at: Callable[[int], Mapping[str, Choice]],
    plan_options: Mapping[str, PlanOptions],
    together: SetPlanOptions,
    fill: Callable[[Partitioning, Mapping[str, float]], FirstTable],
    capacities: Sequence[float] | None = None,
) -> Allocation | None:
    """Returns the fewest slots with which the fullest slot keeps the limits of every query, and the joint ones.

    `choose_at` chooses the plans for a number of slots; `fill` assigns the groups of a grid to slots, for the bytes per
    second of each relation. Returns None if the number of slots is given; then slots may have `capacities`.
    """
    if allowed is None or not allowed.is_sought:
        return None
    if capacities is not None:
        raise SpecError(
            "the number of slots is 'fewest', and capacities are given for some slots",
            hint="remove 'balance.capacities', or set the number of slots",
        )
    own = (limit for each in plan_options.values() for limit in (each.cpu, each.memory, each.latency))
    if min(*own, together.cpu, together.memory) == math.inf:
        raise SpecError(
            "the number of slots is 'fewest', and there are no limits",
            hint="set the limits of a slot: limits: {cpu: 0.8, memory: 500 MB}",
        )

    def objection(slots: int) -> str | None:
        choices = choose_at(slots)
        for choice in choices.values():
            if isinstance(choice.answer, Infeasible):
                return over_budget(choice.answer.cost, choice.budget)
        try:
            joint = (
                None if together == TOGETHER else decide_together(queries, choices, plan_options, together, slots=slots)
            )
        except NoFeasiblePlan as error:
            return error.detail or error.message
        amounts = shared_traffic(choices.values())
        table = fill(partitioning_of(queries, slots, amounts), amounts)
        needs = [(proposal(choice).cost, choice.budget) for choice in choices.values()]
        needs += [] if joint is None else [(joint.cost, joint.budget)]
        objections = (
            over_limits(cost, table, limits.slot_cpu, limits.memory, taken=limits.taken, room=limits.room)
            for cost, limits in needs
        )
        return next(filter(None, objections), None)

    return fewest_slots(allowed, objection)


def shared_lines(joint: JointChoice) -> list[str]:
    """Returns one line per shared join: its users and its savings."""
    lines = []
    for number, each in enumerate(joint.shared, start=1):
        memory = f"{size_text(abs(each.saved_memory))} {'less' if each.saved_memory >= 0 else 'more'} memory"
        saves = f"saves {each.saved_cpu:.3g} cores, {memory}"
        lines.append(f"shared {number}: {each.shared}  used by {', '.join(each.users)}: {saves}")
    return lines


def shared_traffic(choices: Iterable[Choice]) -> dict[str, float]:
    """Returns the estimated bytes per second of each relation over several queries."""
    shared: dict[str, float] = {}
    for choice in choices:
        for name, amount in traffic(choice.estimates).items():
            # Rows that any of the queries needs are sent.
            shared[name] = max(amount, shared.get(name, 0.0))
    return shared


def _contender(member_model: MemberModel, choice: Choice, plan_options: PlanOptions, may_share: bool) -> Contender:
    found = proposal(choice)
    offer = choice.mesh
    is_mesh = plan_options.plan == "mesh" or (offer is not None and offer.is_taken)
    if choice.written is not None and not isinstance(choice.written, Mesh):
        return Contender(member_model, (choice.written,), may_share=False)
    free = plan_options.plan == "auto" and not plan_options.has_hints
    others = [each.plan for each in found.considered if each.standing == "lost"] if free and not is_mesh else []
    plans = tuple(dict.fromkeys([found.plan, *others]))[:MOST_PLANS]
    return Contender(member_model, plans, may_share=free and not is_mesh and may_share)
