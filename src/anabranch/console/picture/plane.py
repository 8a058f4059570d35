"""The candidate plans as dots in the plane of CPU and memory, with the limits as lines.

Shows which plans fit and the trade-off of the chosen plan. An axis is logarithmic if its values differ tenfold or more.
Names are written beside dots where space permits; the tooltip of every dot shows its plan and verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from anabranch.console.picture import svg
from anabranch.console.picture.svg import Colours, Face

Standing: TypeAlias = Literal["chosen", "lost", "over", "refused"]

WIDTH, HEIGHT = 620.0, 360.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 84.0, 28.0, 44.0, 82.0
_TENFOLD = 10.0
_DOTS: dict[Standing, Colours] = {
    "chosen": Colours("#3d7f7b", "#1f4d4a"),
    "lost": Colours("#d5e4f3", "#3f73a8"),
    "over": Colours("#f6d5cb", "#b0492a"),
    "refused": Colours("#ececea", "#9aa0a5"),
}
_WORDS: dict[Standing, str] = {
    "chosen": "chosen",
    "lost": "within the limits",
    "over": "over a limit",
    "refused": "refused by a hint",
}
_GRID, _LIMIT = "#e4e2dc", "#b0492a"
_TITLE = Face(13, "#1f2a33", bold=True)
_TICK = Face(10, "#66737d")
_NAME = Face(10, "#1f2a33", mono=True)
_LIMIT_FACE = Face(10, _LIMIT)


@dataclass(frozen=True)
class Dot:
    """A plan in the plane: cores, bytes, a short name, its standing, and its full description."""

    cpu: float
    memory: float
    name: str
    standing: Standing
    story: str


@dataclass(frozen=True)
class _Axis:
    """Maps values to a range of the picture."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool

    def place(self, value: float) -> float:
        if self.is_log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Returns round values along the axis."""
        if self.is_log:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            many = len(decades) > 4
            values = [digit * 10.0**decade for decade in decades for digit in ((1,) if many else (1, 2, 5))]
        else:
            rough = (self.high - self.low) / 4
            size = 10.0 ** math.floor(math.log10(rough))
            step = next(digit * size for digit in (1, 2, 5, 10) if digit * size >= rough)
            values = [step * count for count in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        return [value for value in values if self.low <= value <= self.high]


def plane(
    dots: Sequence[Dot], *, cpu_limit: float, memory_limit: float, memory_text: Callable[[float], str]
) -> svg.Drawing:
    """Draws the plane of CPU and memory; an infinite limit has no line."""
    across = _axis([dot.cpu for dot in dots], cpu_limit, _LEFT, WIDTH - _RIGHT)
    upward = _axis([dot.memory for dot in dots], memory_limit, HEIGHT - _BOTTOM, _TOP)
    title = "1 plan by what it needs" if len(dots) == 1 else f"{len(dots)} plans by what they need"
    parts = [svg.text(_LEFT, 24, title, _TITLE, anchor="start")]
    for value in across.ticks():
        x = across.place(value)
        parts.append(svg.stroke((x, _TOP), (x, HEIGHT - _BOTTOM), _GRID))
        parts.append(svg.text(x, HEIGHT - _BOTTOM + 15, f"{value:g}", _TICK))
    for value in upward.ticks():
        y = upward.place(value)
        parts.append(svg.stroke((_LEFT, y), (WIDTH - _RIGHT, y), _GRID))
        parts.append(svg.text(_LEFT - 8, y + 3.5, memory_text(value), _TICK, anchor="end"))
    parts.append(svg.text((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - _BOTTOM + 33, "CPU, cores", _TICK))
    parts.append(svg.text(_LEFT - 8, _TOP - 12, "memory", _TICK, anchor="end"))
    parts += _limits(across, upward, cpu_limit, memory_limit, memory_text)
    parts += _dots(dots, across, upward)
    parts.append(_legend(dots))
    return svg.Drawing(WIDTH, HEIGHT, tuple(parts))


def _axis(values: Sequence[float], limit: float, start: float, end: float) -> _Axis:
    shown = [value for value in (*values, limit) if 0 < value < math.inf] or [1.0]
    low, high = min(shown), max(shown)
    if high >= _TENFOLD * low:
        return _Axis(low / 1.5, high * 1.5, start, end, is_log=True)
    room = max((high - low) / 4, high / 8)  # wide enough for distinct round numbers
    return _Axis(max(0.0, low - room), high + room, start, end, is_log=False)


def _limits(
    across: _Axis, upward: _Axis, cpu_limit: float, memory_limit: float, memory_text: Callable[[float], str]
) -> list[str]:
    parts = []
    if cpu_limit < math.inf:
        x = across.place(cpu_limit)
        parts.append(svg.stroke((x, _TOP), (x, HEIGHT - _BOTTOM), _LIMIT, dashed=True))
        parts.append(svg.text(x, _TOP - 6, f"limit {cpu_limit:g} cores", _LIMIT_FACE))
    if memory_limit < math.inf:
        y = upward.place(memory_limit)
        parts.append(svg.stroke((_LEFT, y), (WIDTH - _RIGHT, y), _LIMIT, dashed=True))
        parts.append(svg.text(_LEFT + 4, y - 5, f"limit {memory_text(memory_limit)}", _LIMIT_FACE, anchor="start"))
    return parts


def _dots(dots: Sequence[Dot], across: _Axis, upward: _Axis) -> list[str]:
    """Draws the dots, the chosen one on top, and the names that fit, the chosen one's first."""
    placed = [(dot, across.place(max(dot.cpu, across.low)), upward.place(max(dot.memory, upward.low))) for dot in dots]
    taken = [(x - 6, y - 6, x + 6, y + 6) for _, x, y in placed]
    parts, names = [], []
    for dot, x, y in sorted(placed, key=lambda item: item[0].standing != "chosen"):
        radius = 7.0 if dot.standing == "chosen" else 5.0
        parts.append(svg.group([svg.circle(x, y, radius, _DOTS[dot.standing])], dot.story))
        width = _NAME.width(dot.name)
        for left, base in (
            (x + 10, y + 3.5),
            (x - 10 - width, y + 3.5),
            (x - width / 2, y - 10),
            (x - width / 2, y + 18),
        ):
            box = (left, base - 9, left + width, base + 3)
            inside = left > _LEFT and left + width < WIDTH - _RIGHT and base > _TOP + 10 and base < HEIGHT - _BOTTOM - 2
            if inside and not any(_overlap(box, other) for other in taken):
                names.append(svg.text(left, base, dot.name, _NAME, anchor="start"))
                taken.append(box)
                break
    return [*reversed(parts), *names]


_Box: TypeAlias = tuple[float, float, float, float]


def _overlap(one: _Box, other: _Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _legend(dots: Sequence[Dot]) -> str:
    x, parts = _LEFT, []
    for standing, words in _WORDS.items():
        if any(dot.standing == standing for dot in dots):
            parts.append(svg.circle(x + 5, HEIGHT - 22, 5, _DOTS[standing]))
            parts.append(svg.text(x + 15, HEIGHT - 18.5, words, _TICK, anchor="start"))
            x += _TICK.width(words) + 36
    return "".join(parts)
