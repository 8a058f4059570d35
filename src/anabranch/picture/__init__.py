"""Pictures of plans, as SVG text without any dependency."""

from anabranch.picture.mesh import RouteNote, mesh_svg
from anabranch.picture.plan import OUTPUT, plan_svg
from anabranch.picture.plane import Dot, plane

__all__ = ["OUTPUT", "Dot", "RouteNote", "mesh_svg", "plan_svg", "plane"]
