"""Pictures of plans, as SVG text without any dependency."""

from anabranch.picture.plan import OUTPUT, plan_svg

__all__ = ["OUTPUT", "plan_svg"]
