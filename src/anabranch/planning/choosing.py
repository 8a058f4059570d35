"""Chooses the plan of a query from the user's options and the known statistics.

Statistics have this precedence: given by the user, observed (sampled, or measured by an earlier run), calibrated on
this machine; the rest is assumed and labelled as such.

Invariant: `decide` is the only way from options to a choice, so running queries, explanations and pictures agree.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from anabranch.adapt.facts import REMEMBERED
from anabranch.adapt.gate import Gate
from anabranch.adapt.history import Promise
from anabranch.adapt.records import PlanTaken, Rival
from anabranch.adapt.rules import ChangeRules, Criteria, Switch
from anabranch.adapt.settings import Settings
from anabranch.cost.host import SPARK, Host, host_need
from anabranch.cost.resources import Resources
from anabranch.errors import PlanError, SpecError
from anabranch.optimize import Budget, Choice, Hints, Infeasible, Proposal, choose
from anabranch.optimize.beside import price_of_sides
from anabranch.optimize.hints import KINDS
from anabranch.optimize.optimizers import NAMED
from anabranch.optimize.problem import Problem
from anabranch.optimize.validity import validity
from anabranch.plan.check import PLAN_WORDS
from anabranch.plan.describe import short_text
from anabranch.plan.mesh import Mesh, Plan, is_mesh_text
from anabranch.plan.physical import PhysicalPlan, unshared
from anabranch.plan.query import Query
from anabranch.plan.text import parse
from anabranch.planning.calibration import calibrated, calibrated_host
from anabranch.planning.infeasible import no_feasible_plan
from anabranch.planning.mesh_offer import Learn, offer_mesh
from anabranch.planning.options import AUTO, DEFAULT_BATCH, PlanOptions
from anabranch.stats.view import NOTHING_KNOWN, Layered, StatisticsView

DEFAULT_GATE = Gate()


MOST_RIVALS = 8
"""The number of alternative plans in the record of a first plan."""


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
        Problem(
            query.graph, view, budget, plan_options.objective, hints, batch=batch, grouping=query.merging, beside=beside
        ),
        around=around,
    )
    return replace(choice, mesh=offer_mesh(query, plan_options, choice, learn, gate), written=written)


def on_spark(trigger: float = 0.0, queries: int = 1) -> Host:
    """Returns Spark as a host, with calibrated or built-in costs; `trigger` is in seconds, 0 if there is none."""
    costs = calibrated_host()
    return Host(
        SPARK if costs is None else costs,
        "assumed" if costs is None else "calibrated",
        "trigger" if trigger else "assumed",
        share=1 / queries,
    )


def proposal(choice: Choice) -> Proposal:
    """Returns the plan to run; raises NoFeasiblePlan if there is none within the limits."""
    match choice.answer:
        case Proposal() as found:
            return found
        case Infeasible() as failed:
            raise no_feasible_plan(failed, choice.budget, choice.host)


def first_plan(choice: Choice) -> Plan:
    """Returns the first plan of the query: the mesh if it is taken, else the chosen plan."""
    found = choice.written or proposal(choice).plan
    offer = choice.mesh
    return offer.mesh if offer is not None and offer.is_taken and offer.mesh is not None else found


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
    return PlanTaken(0, plan, _expected(choice), reason, rivals, bounds, query=query)


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
        REMEMBERED if learns(plan_options, choice, adapt) else None,
        promise=_promise(choice),
        resumes=plan_options.plan in PLAN_WORDS and (is_learning or adapt is not None),
    )


def learns(plan_options: PlanOptions, choice: Choice, adapt: Settings | None = None) -> bool:
    """True if the query searches for a mesh while it runs: if requested, if it began with one, or if it adapts.

    A mesh that was written is searched again only if the query adapts.
    """
    if is_mesh_text(plan_options.plan):
        return adapt is not None
    if plan_options.plan != "auto":
        return plan_options.plan == "mesh"
    is_free = not plan_options.has_hints
    return isinstance(first_plan(choice), Mesh) or (adapt is not None and is_free)


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


def _reason(choice: Choice) -> str:
    found, plan = proposal(choice), first_plan(choice)
    return choice.mesh.reason if choice.mesh is not None and plan is not found.plan else found.reason


def _written_with_sharing(plan_options: PlanOptions) -> PhysicalPlan | None:
    """Returns the user's plan if it shares a join; it is priced as if it computed the join itself."""
    if "{" not in plan_options.plan or is_mesh_text(plan_options.plan):
        return None
    return parse(plan_options.plan)


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
