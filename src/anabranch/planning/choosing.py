"""Chooses the plan of a query from the user's settings: `plan: auto` and related options.

All settings are one value, `PlanOptions`, whether they come from a spec or a writer. Statistics have this precedence:
given by the user, observed (sampled, or measured by an earlier run), calibrated on this machine; the rest is assumed
and labelled as such.

Invariant: `decide` is the only way from options to a choice, so running queries, explanations and pictures agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from anabranch.adapt.advisors.routes import AT_ONCE
from anabranch.adapt.gate import Gate, Verdict, judge
from anabranch.adapt.history import Promise
from anabranch.adapt.records import PlanTaken, Rival
from anabranch.adapt.rules import BESIDE, ChangeRules, Criteria, Staging, Switch
from anabranch.adapt.settings import Settings
from anabranch.balance.allocation import Allocation, fewest_slots, over_limits
from anabranch.balance.first import FirstTable
from anabranch.cost.estimates import traffic
from anabranch.cost.host import SPARK, Host, HostNeed, host_need, need_together
from anabranch.cost.resources import Resources
from anabranch.cost.shares import Partaker, from_own_model, in_agreement, of_common_join
from anabranch.cost.units import UnitCosts
from anabranch.errors import NoFeasiblePlan, PlanError, SpecError
from anabranch.lang.sizes import counted, size_text
from anabranch.optimize import Budget, Choice, Hints, Infeasible, MeshOffer, Objective, Proposal, choose
from anabranch.optimize.beside import price_of_sides
from anabranch.optimize.choice import within
from anabranch.optimize.hints import KINDS
from anabranch.optimize.joint import Contender, JointChoice, choose_together
from anabranch.optimize.optimizers import NAMED
from anabranch.optimize.proposals import kind, over_budget
from anabranch.optimize.validity import validity
from anabranch.plan.check import PLAN_WORDS
from anabranch.plan.classing import classes_for, with_classes
from anabranch.plan.describe import short_text
from anabranch.plan.mesh import Mesh, Plan, check_mesh, is_mesh_text, parse_mesh
from anabranch.plan.partitioning import Partitioning
from anabranch.plan.physical import PhysicalPlan, pre_groups, shared_parts, unshared
from anabranch.plan.query import Query
from anabranch.plan.query_set import QuerySet, partitioning_of
from anabranch.plan.slots import SlotRange
from anabranch.plan.text import parse
from anabranch.planning.calibration import calibrated, calibrated_host
from anabranch.settings.entries import Entry
from anabranch.stats.mesh.learnt import LearntMesh
from anabranch.stats.view import NOTHING_KNOWN, FixedStatistics, Layered, StatisticsView

Learn: TypeAlias = Callable[[Mapping[str, float], PhysicalPlan], LearntMesh]
"""Finds a mesh, given the expected rows of each relation's state and the best mjoin."""
DEFAULT_GATE = Gate()
MOST_PLANS = 40
"""The maximum number of plans per query that the joint choice of a set considers."""
MOST_RIVALS = 8
"""The number of alternative plans in the record of a first plan."""
DEFAULT_BATCH = 1.0
"""Seconds between batches if the trigger has no interval."""


@dataclass(frozen=True)
class PlanOptions:
    """The user's options for the plan of a query; names are checked once the query is known."""

    plan: str = "auto"
    """`auto`, a family of plans, `mesh` (which begins as an mjoin), or the text of a plan or a mesh."""
    given: FixedStatistics = NOTHING_KNOWN
    cpu: float = math.inf
    """Maximum cores per slot."""
    memory: float = math.inf
    """Maximum bytes per slot."""
    latency: float = math.inf
    """Maximum seconds from the arrival of a row to its results."""
    of_executors: bool = False
    """True if the CPU and memory that the executor has for a slot are limits of the slot."""
    objective: Objective = field(default_factory=Objective)
    keep: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()
    optimizer: str | None = None
    """The only optimizer to use; None for all of them."""

    @property
    def has_hints(self) -> bool:
        """True if a shape, probe orders or an optimizer is required; then the plan cannot share joins or be a mesh."""
        return self.optimizer is not None or bool(self.keep or self.forbid)

    def with_stats(self, entries: Mapping[str, object]) -> PlanOptions:
        """Returns the options with statistics in the form of a spec's `stats:` block."""
        return replace(self, given=given_statistics(Entry("stats", entries)))

    def with_limits(
        self,
        cpu: float | None = None,
        memory: float | str | None = None,
        latency: str | None = None,
        auto: bool | None = None,
    ) -> PlanOptions:
        """Sets the limits of a slot; None leaves a limit unchanged."""
        seconds = self.latency if latency is None else latency_limit(Entry("limits.latency", latency))
        executors = self.of_executors if auto is None else auto
        return replace(
            self, cpu=_cpu(cpu, self.cpu), memory=_memory(memory, self.memory), latency=seconds, of_executors=executors
        )

    def within(self, cpu: float, memory: float) -> PlanOptions:
        """Returns the options with these resources of a slot's executor as limits, if requested."""
        return replace(self, cpu=min(self.cpu, cpu), memory=min(self.memory, memory)) if self.of_executors else self

    def with_objective(self, text: str) -> PlanOptions:
        return replace(self, objective=Objective.parse(text))

    def with_hints(
        self,
        *,
        keep: Iterable[str] = (),
        forbid: Iterable[str] = (),
        optimizer: str | None = None,
    ) -> PlanOptions:
        return replace(self, keep=tuple(keep), forbid=tuple(forbid), optimizer=optimizer)

    def need_statistics(self, query: Query) -> bool:
        """True if statistics can affect the choice: there are several plans or limits."""
        # Two relations have only one join, but in a grouped query either may be merged first.
        is_open = self.plan in (*PLAN_WORDS, *KINDS) and len(query.graph.names) > (2 if query.merging is None else 1)
        return is_open or min(self.cpu, self.memory, self.latency) < math.inf


def _cpu(limit: float | None, now: float) -> float:
    return now if limit is None else cpu_limit(Entry("limits.cpu", limit))


def _memory(limit: float | str | None, now: float) -> float:
    return now if limit is None else memory_limit(Entry("limits.memory", limit))


AUTO = PlanOptions()
AUTO_LIMITS = "auto"


def given_statistics(block: Entry) -> FixedStatistics:
    """Reads a `stats:` block."""
    given = FixedStatistics.read(block)
    if given.costs:
        UnitCosts.from_names(given.costs)  # rejects unknown or missing names
    return given


def cpu_limit(entry: Entry) -> float:
    """Reads the maximum cores per slot."""
    return entry.number(high=math.inf, above=0.0, hint="write a number above 0, such as 0.8")


def memory_limit(entry: Entry) -> float:
    """Reads the maximum bytes per slot."""
    return entry.size(high=math.inf, above=0.0, hint="write bytes above 0, such as 500000000 or 500 MB")


def limit_entries(entry: Entry, names: str) -> tuple[Mapping[str, Entry], bool]:
    """Reads `limits`: its entries, or `auto` for those of the executors."""
    if entry.value == AUTO_LIMITS:
        return {}, True
    return entry.mapping(names), False


def latency_limit(entry: Entry) -> float:
    """Reads the maximum seconds from the arrival of a row to its results."""
    return entry.seconds("write a duration above 0, such as 5 seconds")


def decide(
    query: Query,
    plan_options: PlanOptions = AUTO,
    *,
    slots: int = 1,
    batch: float = DEFAULT_BATCH,
    seen: StatisticsView = NOTHING_KNOWN,
    learn: Learn | None = None,
    gate: Gate = DEFAULT_GATE,
    host: Host | None = None,
) -> Choice:
    """Returns the plan for a query, or the bound that no plan keeps; `batch` is the batch interval in seconds.

    `learn` finds a mesh if sampled rows are available; `plan: auto` uses the mesh if it passes the gate. `host` runs
    the query, and limits include its resources; an in-process run has none.
    """
    plan_options.given.check_names(query.whole)
    view = Layered((plan_options.given, seen, calibrated()))
    budget = Budget(plan_options.cpu, plan_options.memory, slots, latency=plan_options.latency, batch=batch)
    written = _written_with_sharing(plan_options)
    if written is not None:
        plan_options = replace(plan_options, plan=str(unshared(written)))
    hints = _hints(query, plan_options)
    beside = price_of_sides(query, view, batch)
    around = None if host is None else partial(host_need, query, view, host=host, slots=slots)
    choice = choose(
        query.graph,
        view,
        budget,
        plan_options.objective,
        hints,
        batch=batch,
        grouping=query.merging,
        beside=beside,
        around=around,
    )
    return replace(choice, mesh=_mesh_offer(query, plan_options, choice, learn, gate), written=written)


def on_spark(trigger: float = 0.0, queries: int = 1) -> Host:
    """Returns Spark as a host, with calibrated or built-in costs; `trigger` is in seconds, 0 if there is none."""
    costs = calibrated_host()
    return Host(
        SPARK if costs is None else costs,
        "assumed" if costs is None else "calibrated",
        "trigger" if trigger else "assumed",
        share=1 / queries,
    )


def _written_with_sharing(plan_options: PlanOptions) -> PhysicalPlan | None:
    """Returns the user's plan if it shares a join; it is priced as if it computed the join itself."""
    if "{" not in plan_options.plan or is_mesh_text(plan_options.plan):
        return None
    return parse(plan_options.plan)


@dataclass(frozen=True)
class SetPlanOptions:
    """The user's options for the plans of queries that run together."""

    share: str = "adapt"
    """`auto` shares joins if that saves CPU.

    `adapt` does so among adaptive queries, and can undo it based on measurements. `off` never shares joins.
    """
    cpu: float = math.inf
    """Maximum cores per slot for all queries together."""
    memory: float = math.inf
    """Maximum bytes per slot for all queries together."""
    of_executors: bool = False
    """True if the CPU and memory that the executor has for a slot are limits of all queries together."""

    def with_limits(
        self, cpu: float | None = None, memory: float | str | None = None, auto: bool | None = None
    ) -> SetPlanOptions:
        """Sets the joint limits of a slot; None leaves a limit unchanged."""
        executors = self.of_executors if auto is None else auto
        return replace(self, cpu=_cpu(cpu, self.cpu), memory=_memory(memory, self.memory), of_executors=executors)

    def within(self, cpu: float, memory: float) -> SetPlanOptions:
        """Returns the options with these resources of a slot's executor as limits, if requested."""
        return replace(self, cpu=min(self.cpu, cpu), memory=min(self.memory, memory)) if self.of_executors else self

    def may_share(self, is_adapting: bool) -> bool:
        """True if sharing may be chosen automatically for a query."""
        return self.share == "auto" or (self.share == "adapt" and is_adapting)


SHARE = ("adapt", "auto", "off")
TOGETHER = SetPlanOptions()


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
    partakers = in_agreement(own)
    contenders = [
        _contender(each, choices[each.name], plan_options[each.name], each.name in sharing) for each in partakers
    ]
    by_name = {each.name: each for each in partakers}
    budget = joint_budget(choices, together, slots)
    joint = choose_together(contenders, partial(of_common_join, partakers=by_name), budget)
    if not joint.fits:
        raise _over_joint_limits(joint)
    return joint


def joint_budget(choices: Mapping[str, Choice], together: SetPlanOptions, slots: int) -> Budget:
    """Returns the budget per slot for the plans of a set: the joint limits less the host's resources for all."""
    budget = Budget(together.cpu, together.memory, slots)
    needs = [each.host for each in choices.values() if each.host is not None]
    return within(budget, need_together(needs)) if needs else budget


def allocate(
    queries: QuerySet,
    allowed: SlotRange,
    choose_at: Callable[[int], Mapping[str, Choice]],
    plan_options: Mapping[str, PlanOptions],
    together: SetPlanOptions,
    fill: Callable[[Partitioning, Mapping[str, float]], FirstTable],
) -> Allocation:
    """Returns the fewest slots with which the fullest slot keeps the limits of every query, and the joint ones.

    `choose_at` chooses the plans for a number of slots; `fill` assigns the groups of a grid to slots, for the bytes per
    second of each relation.
    """
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


def refuse_capacities(capacities: Sequence[float] | None) -> None:
    """Rejects slot capacities if the number of slots is still to be determined."""
    if capacities is not None:
        raise SpecError(
            "the number of slots is 'fewest', and capacities are given for some slots",
            hint="remove 'balance.capacities', or set the number of slots",
        )


def joint_plans(choices: Mapping[str, Choice], joint: JointChoice | None) -> dict[str, Plan]:
    """Returns the first plan of each query of a run."""
    plans = {name: first_plan(choice) for name, choice in choices.items()}
    if joint is not None:
        plans |= {name: plan for name, plan in joint.plans.items() if not isinstance(plans[name], Mesh)}
    return plans


def as_run(choices: Mapping[str, Choice], joint: JointChoice | None) -> dict[str, Choice]:
    """Returns the choices of the queries with the plans of the joint choice."""
    if joint is None:
        return dict(choices)
    written = {name: plan for name, plan in joint.plans.items() if shared_parts(plan)}
    return {name: replace(choice, written=written.get(name, choice.written)) for name, choice in choices.items()}


def _contender(partaker: Partaker, choice: Choice, plan_options: PlanOptions, may_share: bool) -> Contender:
    found = proposal(choice)
    offer = choice.mesh
    is_mesh = plan_options.plan == "mesh" or (offer is not None and offer.is_taken)
    if choice.written is not None and not isinstance(choice.written, Mesh):
        return Contender(partaker, (choice.written,), may_share=False)
    free = plan_options.plan == "auto" and not plan_options.has_hints
    others = [each.plan for each in found.considered if each.standing == "lost"] if free and not is_mesh else []
    plans = tuple(dict.fromkeys([found.plan, *others]))[:MOST_PLANS]
    return Contender(partaker, plans, may_share=free and not is_mesh and may_share)


def _over_joint_limits(joint: JointChoice) -> NoFeasiblePlan:
    budget, cost = joint.budget, joint.cost
    needs = _needed(cost, budget)
    plans = "; ".join(f"{name}: {plan}" for name, plan in sorted(joint.plans.items()))
    return NoFeasiblePlan(
        "no plans found for the queries together fit within their joint 'limits'",
        detail=f"{over_budget(cost, budget)}, with the plans {plans}",
        hint=f"write 'limits: {{{', '.join(needs)}}}' or more, use more slots, or shorten the windows",
    )


def change_rules(
    query: Query,
    plan_options: PlanOptions,
    choice: Choice,
    *,
    adapt: Settings | None = None,
    switches: tuple[Switch, ...] = (),
) -> ChangeRules:
    """Returns the rules for changing the chosen plan at run time; an explicit plan is only the starting point."""
    free = plan_options if plan_options.plan in ("auto", *KINDS) else replace(plan_options, plan="auto")
    criteria = Criteria(
        given=choice.statistics,
        budget=choice.budget,
        objective=plan_options.objective,
        hints=_hints(query, free),
        host=None if choice.host is None else choice.host.host,
        expected=_expected(choice),
    )
    is_learning = learns(plan_options, choice, adapt)
    return ChangeRules(
        adapt,
        criteria,
        switches,
        _staging(plan_options, choice, adapt),
        promise=_promise(choice),
        resumes=is_learning or (adapt is not None and plan_options.plan in PLAN_WORDS),
    )


def _expected(choice: Choice) -> Resources:
    """Returns the expected resources of the first plan."""
    offer = choice.mesh
    return choice.answer.cost if offer is None or not offer.is_taken or offer.cost is None else offer.cost


def _promise(choice: Choice) -> Promise | None:
    """Returns the expected cost of a row under the first plan, if that is a mesh."""
    offer, rows = choice.mesh, sum(choice.estimates.rates)
    if offer is None or offer.mesh is None or not offer.is_taken or not rows:
        return None
    return Promise(offer.mesh, _expected(choice).cpu / rows)


def _staging(plan_options: PlanOptions, choice: Choice, adapt: Settings | None) -> Staging | None:
    if not learns(plan_options, choice, adapt):
        return None
    return BESIDE if adapt is not None and plan_options.plan == "auto" else Staging()


def proposal(choice: Choice) -> Proposal:
    """Returns the plan to run; raises NoFeasiblePlan if there is none within the limits."""
    match choice.answer:
        case Proposal() as found:
            return found
        case Infeasible() as failed:
            raise _no_feasible_plan(failed, choice.budget, choice.host)


def first_plan(choice: Choice) -> Plan:
    """Returns the first plan of the query: the mesh if it is taken, else the chosen plan."""
    found = choice.written or proposal(choice).plan
    offer = choice.mesh
    return offer.mesh if offer is not None and offer.is_taken and offer.mesh is not None else found


def learns(plan_options: PlanOptions, choice: Choice, adapt: Settings | None = None) -> bool:
    """True if the query searches for a mesh while it runs: if requested, if it began with one, or if it adapts."""
    if plan_options.plan != "auto":
        return plan_options.plan == "mesh"
    is_free = not plan_options.has_hints
    return isinstance(first_plan(choice), Mesh) or (adapt is not None and is_free)


def shared_traffic(choices: Iterable[Choice]) -> dict[str, float]:
    """Returns the estimated bytes per second of each relation over several queries."""
    shared: dict[str, float] = {}
    for choice in choices:
        for name, amount in traffic(choice.estimates).items():
            # Rows that any of the queries needs are sent.
            shared[name] = max(amount, shared.get(name, 0.0))
    return shared


def headline(choice: Choice) -> str:
    """Returns the chosen plan and the reason, in one line."""
    return f"plan {short_text(first_plan(choice))}: {_reason(choice)} ({len(proposal(choice).considered)} considered)"


def taken(choice: Choice, plan: Plan, query: str | None = None) -> PlanTaken:
    """Returns the record of the first plan of a query; `plan` differs from the choice if plans were chosen together."""
    own = first_plan(choice)
    lost = [each for each in proposal(choice).considered if each.plan != own]
    best = sorted(lost, key=lambda each: (each.standing in ("over", "refused"), each.cost.cpu))[:MOST_RIVALS]
    beaten = {"chosen": "the best plan that is not a mesh"}
    rivals = tuple(Rival(each.plan, each.cost, beaten.get(each.standing, each.reason)) for each in best)
    reason = _reason(choice) if plan == own else "chosen together with the plans of the other queries"
    bounds = () if isinstance(plan, Mesh) else tuple(map(str, validity(choice.problem, unshared(plan))))
    return PlanTaken(0, plan, _expected(choice), reason, rivals, bounds, query)


def _reason(choice: Choice) -> str:
    found, plan = proposal(choice), first_plan(choice)
    return choice.mesh.reason if choice.mesh is not None and plan is not found.plan else found.reason


def _mesh_offer(
    query: Query, plan_options: PlanOptions, choice: Choice, learn: Learn | None, gate: Gate
) -> MeshOffer | None:
    graph = query.graph
    if is_mesh_text(plan_options.plan):
        written = parse_mesh(plan_options.plan)
        return MeshOffer("as written", True, check_mesh(written, with_classes(graph, classes_for(written, graph))))
    if isinstance(choice.answer, Infeasible):
        return None
    wanted = plan_options.plan == "mesh"
    is_free = plan_options.plan == "auto" and not plan_options.has_hints
    if wanted and len(graph.names) < 3:
        return MeshOffer("two relations have only one order")
    if wanted and learn is None:
        return MeshOffer("no sample: the query starts with one route per relation and learns a mesh while it runs")
    if learn is None or len(graph.names) < 3 or not (wanted or is_free):
        return None
    model, best = choice.model, choice.answer.cost
    considered = choice.answer.considered
    mjoins = [each for each in considered if kind(each.plan) == "mjoin" and not any(pre_groups(each.plan))]
    rival = min(mjoins, key=lambda each: each.cost.cpu, default=None)
    single = best if rival is None else rival.cost

    def verdict(proposed: Resources) -> Verdict:
        return judge(gate, best, proposed, AT_ONCE, choice.objective, choice.budget)

    best_case = verdict(replace(single, cpu=model.base.cpu))
    if is_free and not best_case.passed:
        return MeshOffer(f"not learnt: even with free routes it {best_case.reason}")
    held = {name: model.rows(model.estimates.mask((name,))) for name in graph.names}
    learnt = learn(held, choice.answer.plan if rival is None else rival.plan)
    if not learnt.is_mesh:
        return MeshOffer("one route per relation is best for the sampled rows", learnt=learnt)
    rates = dict(zip(graph.names, model.estimates.rates, strict=True))
    # The model gives the total cost of single routes; the sample gives the fraction that a mesh would save.
    routing = single.cpu - model.base.cpu
    cost = replace(single, cpu=model.base.cpu + routing / (1 + learnt.gain(rates)))
    if wanted:
        return MeshOffer("requested, and it gains on held-out rows", True, learnt.mesh, learnt, cost)
    found = verdict(cost)
    return MeshOffer(found.reason, found.passed, learnt.mesh, learnt, cost)


def _hints(query: Query, plan_options: PlanOptions) -> Hints:
    force = plan_options.plan.strip()
    if not force:
        raise PlanError("the plan is empty", hint="use auto, mjoin, tree, jtree or a plan text such as ((a b) c)")
    if force == "mesh" or is_mesh_text(force):
        # Its routes are orders of the mjoin, which is also the initial plan of a mesh that is yet to be learnt.
        force = "mjoin"
    wanted = None if force == "auto" else force
    if plan_options.optimizer not in (None, *NAMED):
        raise SpecError(
            f"'hints.optimizer' names '{plan_options.optimizer}', which is not an optimizer",
            hint=f"write one of {', '.join(NAMED)}, or omit it to use all",
        )
    return Hints.parse(
        query.graph,
        query.merging,
        force=wanted,
        keep=plan_options.keep,
        forbid=plan_options.forbid,
        optimizer=plan_options.optimizer,
    )


def _no_feasible_plan(failed: Infeasible, budget: Budget, host: HostNeed | None = None) -> NoFeasiblePlan:
    cost, slots = failed.cost, budget.slots
    each = f" in each of {slots} slots" if slots > 1 else ""
    needs = _needed(cost, budget)
    allowed = (
        f"'limits.cpu' allows {budget.cpu:g} cores{each}",
        f"'limits.memory' allows {size_text(budget.memory)}{each}",
    )
    match failed.bound:
        case "cpu":
            named, best, limit = "'limits.cpu'", "the plan with the least CPU", allowed[0]
        case "memory":
            named, best, limit = "'limits.memory'", "the plan with the least memory", allowed[1]
        case "latency":
            named, best = "'limits.latency'", "the plan with the least CPU"
            limit = f"'limits.latency' allows {budget.latency:g} s, and batches come every {budget.batch:g} s"
        case "cpu and memory together" | "hints":
            named, best = "'limits.cpu' and 'limits.memory' together", "the nearest plan"
            limit = f"{allowed[0]} and {allowed[1]}"
    subject = "no plan" if failed.is_proven else f"none of {counted(len(failed.considered), 'plan')} considered"
    slot = budget.of_slot(cost)
    written = [f"write 'limits: {{{', '.join(needs)}}}' or more"] if needs else []
    remedies = ["use more slots", "shorten the windows"]
    if failed.bound == "latency":
        remedies.insert(0, "set a shorter trigger")
    elif host is not None and cost.cpu > budget.total_cpu:
        remedies.insert(0, "set a longer trigger")
    return NoFeasiblePlan(
        f"{subject} fits within {named}",
        detail=f"{limit}; {best} is {failed.best}, which needs {slot.cpu:.3g} cores and "
        f"{size_text(slot.memory)}{each}{_parts(cost, budget, host)}",
        hint=", ".join([*written, *remedies[:-1], f"or {remedies[-1]}"]),
    )


def _needed(cost: Resources, budget: Budget) -> list[str]:
    """Returns the limits to set for a plan.

    Includes every limit that the plan exceeds: if only one of two were raised, the next error would be about the other.
    """
    slot = budget.of_slot(cost)
    needs = []
    if cost.cpu > budget.total_cpu:
        is_slow = budget.slot_cpu < budget.cpu and budget.latency_of(cost) < math.inf
        needs = [f"latency: {_rounded_up(budget.latency_of(cost)):g} seconds"] if is_slow else []
        needs += [f"cpu: {_rounded_up(slot.cpu):g}"] if slot.cpu > budget.cpu else []
    return needs + ([f"memory: {size_text(_rounded_up(slot.memory))}"] if cost.memory > budget.total_memory else [])


def _parts(cost: Resources, budget: Budget, host: HostNeed | None) -> str:
    """Returns the resources of a slot by part: the plan's and the host's."""
    if host is None:
        return ""
    state = size_text(cost.memory * budget.room / budget.slots)
    return (
        f": {cost.cpu / budget.slots:.3g} cores for the plan and {budget.taken.cpu:.3g} for Spark "
        f"({host.triggers:.3g} for a trigger every {host.batch:g} s, {host.rows + host.results:.3g} for rows and "
        f"results), {state} for the state and {size_text(budget.taken.memory)} for a worker and its rows"
    )


def _rounded_up(amount: float) -> float:
    """Rounds up to two significant digits.

    >>> _rounded_up(137_412.0)
    140000.0
    """
    if amount <= 0:
        return 0.0
    digit = 10.0 ** (math.floor(math.log10(amount)) - 1)
    return math.ceil(amount / digit) * digit
