from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from anabranch.console.picture import Dot, plane
from anabranch.console.picture.plane import HEIGHT, WIDTH
from anabranch.lang.sizes import size_text

DOTS = [
    Dot(0.02, 9e6, "((a b) c)", "lost", "a tree"),
    Dot(0.03, 2e6, "(a b c)", "chosen", "the mjoin"),
    Dot(0.9, 8e8, "((a c) b)", "over", "a cross product"),
    Dot(0.025, 3e6, "(a (b c))", "refused", "another tree"),
]


def drawn(dots: list[Dot], cpu: float = math.inf, memory: float = math.inf) -> ElementTree.Element:
    parts = plane(dots, cpu_limit=cpu, memory_limit=memory, memory_text=size_text).parts
    return ElementTree.fromstring(f"<svg>{''.join(parts)}</svg>")


def words(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter("text")]


def test_every_plan_is_a_dot_that_tells_its_story() -> None:
    root = drawn(DOTS)
    assert {title.text for title in root.iter("title")} == {dot.story for dot in DOTS}
    assert {"chosen", "within the limits", "over a limit", "refused by a hint"} <= set(words(root))
    assert "(a b c)" in words(root)


def test_one_plan_is_not_several() -> None:
    assert "1 plan by what it needs" in words(drawn(DOTS[:1]))
    assert "4 plans by what they need" in words(drawn(DOTS))


def test_more_is_further_right_and_further_up() -> None:
    places = {
        group.findtext("title"): (float(circle.get("cx", "")), float(circle.get("cy", "")))
        for group in drawn(DOTS).iter("g")
        if (circle := group.find("circle")) is not None
    }
    assert places["a cross product"][0] > places["the mjoin"][0] > places["another tree"][0] > places["a tree"][0]
    assert places["a cross product"][1] < places["a tree"][1] < places["another tree"][1] < places["the mjoin"][1]
    assert all(0 < x < WIDTH and 0 < y < HEIGHT for x, y in places.values())


def test_limits_are_lines_with_their_amount() -> None:
    free, limited = drawn(DOTS), drawn(DOTS, cpu=0.5, memory=1e8)
    dashed = [path for path in limited.iter("path") if path.get("stroke-dasharray")]
    assert len(dashed) == 2
    assert {"limit 0.5 cores", "limit 100.0 MB"} <= set(words(limited))
    assert not [path for path in free.iter("path") if path.get("stroke-dasharray")]


@pytest.mark.parametrize(
    "dots", [DOTS[:1], [DOTS[0], DOTS[0]], [Dot(0.0, 0.0, "a", "chosen", "free of cost")], DOTS * 10]
)
def test_odd_crowds_are_drawn(dots: list[Dot]) -> None:
    assert len(list(drawn(dots).iter("title"))) == len(dots)


def test_neighbouring_ticks_read_differently() -> None:
    dots = [Dot(0.00055, 1.31e6, "x", "chosen", ""), Dot(0.00062, 1.37e6, "y", "lost", "")]
    amounts = [text for text in words(drawn(dots)) if text.endswith(" MB")]
    assert len(amounts) == len(set(amounts)) >= 2
