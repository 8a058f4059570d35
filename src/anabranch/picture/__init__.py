"""Pictures of plans, as SVG text without any dependency."""

from anabranch.picture.plan import OUTPUT, plan_svg
from anabranch.picture.plane import Dot, plane

__all__ = ["OUTPUT", "Dot", "plan_svg", "plane"]
