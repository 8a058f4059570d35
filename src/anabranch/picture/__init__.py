"""Pictures of plans, as SVG text without any dependency."""

from anabranch.picture.mesh import RouteNote, mesh_svg
from anabranch.picture.plan import OUTPUT, ShownPlan, plan_svg, plans_svg, set_svg
from anabranch.picture.plane import Dot, plane

__all__ = ["OUTPUT", "Dot", "RouteNote", "ShownPlan", "mesh_svg", "plan_svg", "plane", "plans_svg", "set_svg"]
