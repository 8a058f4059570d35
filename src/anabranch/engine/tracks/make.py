"""Builds the track of a plan, and finds a track again from its layout: the one place that knows the kinds."""

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


def make_track(ground: PlanContext, plan: Plan) -> Track:
    """A track that begins with empty states, or with none."""
    return MeshTrack(ground, plan) if isinstance(plan, Mesh) else PlanTrack(ground, plan)


def plan_of(layout: Mapping[str, Any]) -> Plan:
    """The plan of the track from which the layout was taken; during a migration, the new one."""
    return plan_of(layout["new"]) if "new" in layout else parse_plan(layout["plan"])


def reopened(ground: PlanContext, layout: Mapping[str, Any]) -> Track:
    """The track from which the layout was taken."""
    return _REOPENED[layout["kind"]](ground, layout)
