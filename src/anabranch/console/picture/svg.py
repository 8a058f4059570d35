"""SVG primitives: text that fits its box, boxes, stores, lines.

Expressions use a fixed-width font, so that the width of a text is known without the font. All other text uses the
viewer's sans-serif font and is measured generously. No dependencies. Invariant: equal input gives equal bytes.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

SANS = "Inter, 'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif"
MONO = "'JetBrains Mono', 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_MONO_WIDTH = 0.61
_SANS_WIDTH = 0.58


@dataclass(frozen=True)
class Face:
    """The font and size of a text."""

    size: float
    colour: str
    mono: bool = False
    bold: bool = False

    @property
    def line(self) -> float:
        return self.size * 1.4

    def width(self, text: str) -> float:
        return len(text) * self.size * (_MONO_WIDTH if self.mono else _SANS_WIDTH)

    def wrap(self, text: str, width: float, most: int) -> list[str]:
        """Wraps the text into at most `most` lines of that width; an ellipsis replaces the rest."""
        letters = max(8, int(width / (self.size * (_MONO_WIDTH if self.mono else _SANS_WIDTH))))
        lines = textwrap.wrap(text, letters, break_long_words=True, break_on_hyphens=False)
        if len(lines) <= most:
            return lines
        return [*lines[: most - 1], lines[most - 1][: letters - 1].rstrip(" ,") + "…"]


@dataclass(frozen=True)
class Colours:
    """Fill and stroke of a shape."""

    fill: str
    stroke: str


@dataclass(frozen=True)
class Drawing:
    """Parts of a picture and their size."""

    width: float
    height: float
    parts: tuple[str, ...]


def text(x: float, y: float, words: str, face: Face, *, anchor: str = "middle") -> str:
    weight = ' font-weight="600"' if face.bold else ""
    family = f' font-family="{MONO}"' if face.mono else ""
    return (
        f'<text x="{_n(x)}" y="{_n(y)}" font-size="{_n(face.size)}" fill="{face.colour}" text-anchor="{anchor}"'
        f"{weight}{family}>{escape(words)}</text>"
    )


def box(x: float, y: float, width: float, height: float, colours: Colours, *, radius: float = 6) -> str:
    return (
        f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" rx="{_n(radius)}" '
        f'fill="{colours.fill}" stroke="{colours.stroke}" stroke-width="1.2"/>'
    )


def glow(x: float, y: float, width: float, height: float, colour: str, share: float) -> str:
    """Covers a box with a colour that is as strong as a share, from 0 to 1."""
    return (
        f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" rx="6" fill="{colour}" '
        f'fill-opacity="{share:.3f}"/>'
    )


def store(x: float, y: float, colours: Colours, *, width: float = 30, height: float = 22) -> str:
    """Draws a small drum whose top centre is (x, y)."""
    left, right, bow = x - width / 2, x + width / 2, height / 5
    top, bottom = y + bow, y + height - bow
    return (
        f'<path d="M{_n(left)} {_n(top)} V{_n(bottom)} A{_n(width / 2)} {_n(bow)} 0 0 0 {_n(right)} {_n(bottom)} '
        f'V{_n(top)}" fill="{colours.fill}" stroke="{colours.stroke}" stroke-width="1.2"/>'
        f'<ellipse cx="{_n(x)}" cy="{_n(top)}" rx="{_n(width / 2)}" ry="{_n(bow)}" fill="{colours.fill}" '
        f'stroke="{colours.stroke}" stroke-width="1.2"/>'
    )


def line(x: float, start: float, end: float, colour: str, *, arrow: bool = False) -> str:
    """Draws a vertical line."""
    head = ' marker-end="url(#arrow)"' if arrow else ""
    return f'<path d="M{_n(x)} {_n(start)} V{_n(end)}" stroke="{colour}" stroke-width="1.4" fill="none"{head}/>'


def stroke(start: tuple[float, float], end: tuple[float, float], colour: str, *, dashed: bool = False) -> str:
    """Draws a thin straight line."""
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    ends = f"M{_n(start[0])} {_n(start[1])} L{_n(end[0])} {_n(end[1])}"
    return f'<path d="{ends}" stroke="{colour}" stroke-width="{1.4 if dashed else 1}" fill="none"{dash}/>'


def pointer(start: tuple[float, float], end: float, colour: str) -> str:
    """Draws a horizontal line with an arrow at its end."""
    path = f"M{_n(start[0])} {_n(start[1])} H{_n(end)}"
    return f'<path d="{path}" stroke="{colour}" stroke-width="1.4" fill="none" marker-end="url(#arrow)"/>'


def ribbon(start: tuple[float, float], end: tuple[float, float], colour: str, width: float) -> str:
    """Draws a curve from left to right that starts and ends horizontally."""
    (x, y), (right, level) = start, end
    middle = (x + right) / 2
    curve = f"C{_n(middle)} {_n(y)} {_n(middle)} {_n(level)} {_n(right)} {_n(level)}"
    return (
        f'<path d="M{_n(x)} {_n(y)} {f"H{_n(right)}" if y == level else curve}" stroke="{colour}" '
        f'stroke-width="{_n(width)}" stroke-linecap="round" fill="none"/>'
    )


def upright(x: float, y: float, words: str, face: Face) -> str:
    """Draws a text around (x, y), rotated to read upwards."""
    return f'<g transform="translate({_n(x)} {_n(y)}) rotate(-90)">{text(0, face.size * 0.35, words, face)}</g>'


def circle(x: float, y: float, radius: float, colours: Colours) -> str:
    return (
        f'<circle cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}" fill="{colours.fill}" stroke="{colours.stroke}" '
        'stroke-width="1.4"/>'
    )


def stacked(drawings: Sequence[Drawing], *, title: str, background: str, arrow: str) -> str:
    """Stacks drawings vertically into one document."""
    y, parts = 0.0, []
    for drawing in drawings:
        parts.append(f'<g transform="translate(0 {_n(y)})">{"".join(drawing.parts)}</g>')
        y += drawing.height
    width = max(drawing.width for drawing in drawings)
    return document(width, y, parts, title=title, background=background, arrow=arrow)


def group(parts: list[str], title: str) -> str:
    """Groups parts, with a tooltip text."""
    return f"<g><title>{escape(title)}</title>{''.join(parts)}</g>"


def document(width: float, height: float, parts: list[str], *, title: str, background: str, arrow: str) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_n(width)}" height="{_n(height)}" '
        f'viewBox="0 0 {_n(width)} {_n(height)}" role="img" font-family="{SANS}">\n'
        f"<title>{escape(title)}</title>\n"
        f'<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0.8 L7 4 L0 7.2 z" fill="{arrow}"/></marker></defs>\n'
        f'<rect width="{_n(width)}" height="{_n(height)}" fill="{background}"/>\n{body}\n</svg>\n'
    )


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
