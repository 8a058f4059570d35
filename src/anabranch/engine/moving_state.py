"""The moving state strategy: a new plan's track over the states of the old one, complete before its first step.

States that both plans keep are handed over as they are, or filtered first where the new plan checks a predicate sooner
(`plan.difference` says when which will do); the rest is computed from what is there, inputs first: all live parts of
the smallest input of a join look up the others, as new ones would, and where the new plan merges an input, its live
rows are merged. So group-by moves below joins and back: what was merged is taken apart by going back to the base rows,
which are all there (Zhu 2006, Section 14.1.1, feeds them through the join again instead). Nothing of the old track
changes until the new one is complete, so a failure on the way leaves the old plan as it was. (Zhu 2006, Section 12.1;
its nested-loop join of two states is a lookup by index here.)

Safe discarding: a combination in a state that goes is found again from base rows or useless. A base row is dropped when
it is out of reach of all other relations (`expiry`), hence of all that could still complete a combination with it. The
paper proves the same for one execution model; here it holds for any order of rows.
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
    """Computes what a new track lacks, inputs first: by filtering states of the old one, or from their own inputs.

    `floors` are those of the last drop, or none if nothing was ever dropped. Returns the rows of each state.
    """
    programs = {program.node.shape: program for program in track.program.joins}
    filtered = {state.new: state for state in matching.filtered}
    counts = {}
    for plan in kept(track.plan):
        low = out_of_reach(floors, plan.relations, track.ground.query.pairwise)[0] if floors else ANY_TIME
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
    """The combinations of an old state that pass what the new plan has checked by then."""
    found = old.intermediates[state.old].everything()
    # The base rows of an overdue one that stands behind a live one may be gone.
    found = living(keep(found, found.deadline >= low), old.bases)
    for position in state.predicates:
        if len(found):
            found = passing(old.thetas[position].predicate, found, old.bases)
    return found


def _everything(track: PlanTrack, plan: PhysicalPlan, programs: Mapping[str, JoinProgram], low: int) -> Combinations:
    """All combinations of a plan whose deadline is not before `low`."""
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
    """All combinations of a join's inputs whose deadline is not before `low`."""
    join = track.join(program, Meter())
    position = min(range(len(join.inputs)), key=lambda i: join.inputs[i].ring.live)
    driving = join.inputs[position].everything()
    driving = living(keep(driving, driving.deadline >= low), track.bases)
    if isinstance(part := program.node.inputs[position], Shared):
        # What the query asks beyond the shared join holds in every state above it.
        driving = checked(track.entries[part], driving, track.bases, Meter())
    # Whatever completes such a combination has a time of `low` or later, so the newest time may be raised to it. That
    # keeps lookups from parts that expired before: their base rows may be gone and must not be read.
    raised = replace(driving, newest=np.maximum(driving.newest, low))
    return concatenated(list(join.probe(position, raised)), join.program.node.relations)
