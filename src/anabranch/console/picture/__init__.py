"""Pictures of plans, as SVG text without any dependency."""

from anabranch.console.picture.mesh import RouteNote, mesh_svg
from anabranch.console.picture.plan import OUTPUT, ShownPlan, plan_svg, plans_svg, set_svg
from anabranch.console.picture.plane import Dot, plane

__all__ = ["OUTPUT", "Dot", "RouteNote", "ShownPlan", "mesh_svg", "plan_svg", "plane", "plans_svg", "set_svg"]
