"""Builds the track of a plan, and reopens a track from its layout; the only module that depends on the kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from anabranch.engine.tracks.mesh import MeshTrack
from anabranch.engine.tracks.parallel import ParallelTrack
from anabranch.engine.tracks.plan import PlanTrack
from anabranch.engine.tracks.protocol import PlanContext, Track
from anabranch.engine.tracks.spread import SpreadTrack
from anabranch.plan.mesh import Mesh, Plan, parse_plan

_REOPENED: dict[str, Callable[[PlanContext, Mapping[str, Any]], Track]] = {
    PlanTrack.KIND: PlanTrack.reopened,
    ParallelTrack.KIND: ParallelTrack.reopened,
    SpreadTrack.KIND: SpreadTrack.reopened,
    MeshTrack.KIND: MeshTrack.reopened,
}


def make_track(context: PlanContext, plan: Plan) -> Track:
    """Creates a track with empty states, or without states."""
    return MeshTrack(context, plan) if isinstance(plan, Mesh) else PlanTrack(context, plan)


def plan_of(layout: Mapping[str, Any]) -> Plan:
    """Returns the plan in a layout; during a migration, the new one."""
    return plan_of(layout["new"]) if "new" in layout else parse_plan(layout["plan"])


def reopened(context: PlanContext, layout: Mapping[str, Any]) -> Track:
    """Reopens the track of a layout."""
    return _REOPENED[layout["kind"]](context, layout)
