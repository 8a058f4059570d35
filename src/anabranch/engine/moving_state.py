"""The moving-state strategy: a track of the new plan over the states of the old one, complete before its first step.

States that both plans keep are handed over unchanged, or filtered first if the new plan checks a predicate earlier
(`plan.difference` decides which). The rest is computed, inputs first: all live rows of the smallest input of a join
probe the others as new rows would. If the new plan merges an input, its live rows are merged. So group-by can move
below joins and back: merged rows are recomputed from the base rows, which are all there (Zhu 2006, Section 14.1.1,
feeds them through the join again instead). (Zhu 2006, Section 12.1; its nested-loop join of two states is an index
lookup here.)

Invariant: the old track is unchanged until the new one is complete, so a failure leaves the old plan as it was.

Safe discarding: a combination in a discarded state is either recomputable from base rows or useless. A base row is
dropped when it is out of reach of all other relations (`expiry`), hence of everything that could complete a combination
with it. The paper proves this for one execution model; here it holds for any order of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from anabranch.engine.batch import Combinations, concatenated
from anabranch.engine.compile import JoinProgram
from anabranch.engine.expiry import out_of_reach
from anabranch.engine.meter import Meter
from anabranch.engine.operators.join import checked, keep, living, passing
from anabranch.engine.state.ring import ANY_TIME
from anabranch.engine.tracks.plan import PlanTrack
from anabranch.plan.difference import FilteredState, StateMatching
from anabranch.plan.physical import InputOperator, JoinNode, Leaf, PhysicalPlan, Shared, kept


def fill(track: PlanTrack, matching: StateMatching, old: PlanTrack, floors: Mapping[str, int]) -> dict[str, int]:
    """Computes the missing states of a new track, inputs first: by filtering old states, or from their own inputs.

    `floors` are those of the last drop, or empty if nothing was dropped yet. Returns the row count of each state.
    """
    programs = {program.node.shape: program for program in track.program.joins}
    filtered = {state.new: state for state in matching.filtered}
    counts = {}
    for plan in kept(track.plan):
        low = out_of_reach(floors, plan.relations, track.context.query.pairwise)[0] if floors else ANY_TIME
        if plan.shape in filtered:
            found = _passing(old, filtered[plan.shape], low)
        elif plan.shape in matching.recomputed:
            found = _everything(track, plan, programs, low)
        else:
            continue
        track.intermediates[plan.shape].insert(found, track.codes)
        counts[plan.shape] = len(found)
    return counts


def _passing(old: PlanTrack, state: FilteredState, low: int) -> Combinations:
    """Returns the combinations of an old state that pass the predicates that the new plan checks below it."""
    found = old.intermediates[state.old].everything()
    # An overdue combination may follow a live one, and its base rows may be gone.
    found = living(keep(found, found.deadline >= low), old.bases)
    for position in state.predicates:
        if len(found):
            found = passing(old.thetas[position].predicate, found, old.bases)
    return found


def _everything(track: PlanTrack, plan: PhysicalPlan, programs: Mapping[str, JoinProgram], low: int) -> Combinations:
    """Returns all combinations of a plan whose deadline is not before `low`."""
    match plan:
        case Leaf(relation=name):
            found = track.bases[name].everything()
            return keep(found, found.deadline >= low)
        case InputOperator(input=below):
            return track.operators[plan.shape].work(_everything(track, below, programs, low))
        case JoinNode():
            return joined(track, programs[plan.shape], low)
        case Shared():
            found = track.state(plan).everything()
            found = living(keep(found, found.deadline >= low), track.bases)
            return checked(track.entries[plan], found, track.bases, Meter())


def joined(track: PlanTrack, program: JoinProgram, low: int) -> Combinations:
    """Returns all combinations of a join's inputs whose deadline is not before `low`."""
    join = track.join(program, Meter())
    position = min(range(len(join.inputs)), key=lambda i: join.inputs[i].ring.live)
    driving = join.inputs[position].everything()
    driving = living(keep(driving, driving.deadline >= low), track.bases)
    if isinstance(part := program.node.inputs[position], Shared):
        # Predicates beyond those of the shared join hold in every state above it.
        driving = checked(track.entries[part], driving, track.bases, Meter())
    # Whatever completes such a combination has a time of `low` or later, so its newest time may be raised to `low`.
    # That keeps lookups away from combinations that expired earlier: their base rows may be gone and must not be read.
    raised = replace(driving, newest=np.maximum(driving.newest, low))
    return concatenated(list(join.probe(position, raised)), join.program.node.relations)
