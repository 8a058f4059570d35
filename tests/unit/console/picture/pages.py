"""What every picture owes its reader: boxes that stay on the page and apart."""

from __future__ import annotations

from xml.etree import ElementTree

SVG = "{http://www.w3.org/2000/svg}"


def boxes_apart(svg: str) -> int:
    """Checks that no box of the picture leaves the page or lies upon another; gives their number."""
    root = ElementTree.fromstring(svg)
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    boxes = [
        tuple(float(rect.get(name, "0")) for name in ("x", "y", "width", "height"))
        for rect in root.iter(f"{SVG}rect")
        if rect.get("x") is not None
    ]
    for index, (x, y, wide, tall) in enumerate(boxes):
        assert x >= 0
        assert y >= 0
        assert x + wide <= width
        assert y + tall <= height
        for other_x, other_y, other_wide, other_tall in boxes[:index]:
            beside = x + wide <= other_x or other_x + other_wide <= x
            above = y + tall <= other_y or other_y + other_tall <= y
            assert beside or above
    return len(boxes)
