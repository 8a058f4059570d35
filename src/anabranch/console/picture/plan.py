"""A physical plan as a picture: sources below, joins above them, results on top.

A join is a bar that spans its inputs; shared joins have their own colour. Every input enters through the store that the
join probes, which shows the kept state; above each entry is the probe order of that input. An outer, semi or anti join
is above the inner joins, and the streams and tables that it adds enter from its right. Limit: beyond about eight
relations the picture gets too wide to read, but remains correct.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from anabranch.console.picture import svg
from anabranch.console.picture.svg import Colours, Drawing, Face
from anabranch.lang.window import duration_text
from anabranch.plan.describe import conditions, probe_path
from anabranch.plan.join_graph import JoinGraph, Relation
from anabranch.plan.physical import (
    InputOperator,
    JoinNode,
    Leaf,
    PhysicalPlan,
    Shared,
    height,
    shape,
    shared_parts,
    unshared,
)
from anabranch.plan.query import Grouping, Query
from anabranch.plan.sides import Side

OUTPUT = "output"
"""The key of the note in the results box."""

_PAPER, _INK, _SOFT, _LINE = "#fcfbf8", "#1f2a33", "#66737d", "#8795a1"
_SOURCE = Colours("#ffffff", "#9aa8b4")
_JOIN = Colours("#e6f0ef", "#3d7f7b")
_SHARED = Colours("#dbe9c8", "#5f8a2a")
"""A join that several queries share."""
_HOT = "#f2a77c"
"""The colour of a join that does all the work."""
_GROUP = Colours("#eee9f5", "#74599c")
_RESULT = Colours(_INK, _INK)
_BASE_STORE = Colours("#d5e4f3", "#3f73a8")
_INNER_STORE = Colours("#fae2b8", "#b5791c")

_TITLE = Face(13, _INK, bold=True)
_CODE = Face(11, _INK, mono=True)
_QUIET = Face(10.5, _SOFT, mono=True)
_NOTE = Face(10.5, "#9a3b1f")
_LABEL = Face(10.5, _SOFT)

_MARGIN, _GAP, _PADDING, _RISE = 28.0, 22.0, 10.0, 66.0
_ENTRY, _STACK = 84.0, 12.0
_LEAF_WIDTH, _WIDEST_LEAF, _WIDEST_ORDER, _JOIN_WIDTH = 140.0, 232.0, 156.0, 230.0


def plan_svg(
    query: Query,
    plan: PhysicalPlan,
    *,
    notes: Mapping[str, str] = MappingProxyType({}),
    below: Sequence[Drawing] = (),
    heat: Mapping[str, float] = MappingProxyType({}),
) -> str:
    """Draws the plan of a query as an SVG document; `notes` maps a node's shape text, or `output`, to a remark.

    `heat` maps the shape of a join to its share of the work, from 0 to 1, which its colour shows.
    """
    drawings = [draw_plan(query, plan, notes, heat=heat), *below]
    return svg.stacked(drawings, title=f"plan {plan}", background=_PAPER, arrow=_LINE)


@dataclass(frozen=True)
class ShownPlan:
    """One of several plans in a picture, with a heading and with notes as for `plan_svg`."""

    plan: PhysicalPlan
    heading: str
    notes: Mapping[str, str]


def plans_svg(query: Query, shown: Sequence[ShownPlan]) -> str:
    """Draws several plans of one query, one below the other."""
    return set_svg([(query, each) for each in shown])


def set_svg(shown: Sequence[tuple[Query, ShownPlan]]) -> str:
    """Draws the plans of several queries, one below the other."""
    drawings = [draw_plan(query, each.plan, each.notes, each.heading) for query, each in shown]
    return svg.stacked(drawings, title=shown[0][1].heading, background=_PAPER, arrow=_LINE)


def draw_plan(
    query: Query,
    plan: PhysicalPlan,
    notes: Mapping[str, str],
    heading: str = "",
    heat: Mapping[str, float] = MappingProxyType({}),
) -> Drawing:
    """Draws the plan as a part of a picture, below a heading; the heading is the plan's text if none is given."""
    heading = heading or f"plan {plan}"
    shared = frozenset(part.join.shape for part in shared_parts(plan))
    plan = unshared(plan)
    root = _place(_Labels(query.graph, notes, conditions(plan, query.graph), heat, shared), plan, _MARGIN)
    top = _result_boxes(query, notes)
    levels = _levels(root)
    column = max(root.width, *(each.piece.width for each in top), _TITLE.width(heading))
    beside = max((each.piece.width / 2 + each.beside for each in top if each.sources), default=0.0)
    width = max(column, column / 2 + beside) + 2 * _MARGIN
    shift = (column - root.width) / 2
    upper = sum(each.height + 30 for each in top)
    bottoms = [_MARGIN + 34 + upper + sum(levels) + _RISE * (len(levels) - 1)]
    for tall in levels[:-1]:
        bottoms.append(bottoms[-1] - tall - _RISE)
    parts = [svg.text(_MARGIN, _MARGIN + 8, heading, Face(12, _SOFT, mono=True), anchor="start")]
    centre = root.centre + shift
    y = _MARGIN + 34.0
    for each in top:
        x = centre - each.piece.width / 2
        parts += each.draw(x, y)
        parts.append(svg.line(centre, y + each.height + 28, y + each.height + 3, _LINE, arrow=True))
        y += each.height + 30
    parts += _draw(root, _Frame(shift, tuple(bottoms), bottoms[0] - levels[0]))
    foot = bottoms[0] + 34
    if root.inputs or any(each.sources for each in top):
        parts.append(_legend(foot, inner=any(child.is_derived for child in _inner(root))))
    return Drawing(width, foot + 26, tuple(parts))


@dataclass(frozen=True)
class _Piece:
    """A box with centred lines of text."""

    lines: tuple[tuple[str, Face], ...]
    colours: Colours
    width: float
    title: str
    heat: float = 0.0
    """The share of the work, from 0 to 1, that its colour shows."""

    @property
    def height(self) -> float:
        return sum(face.line for _, face in self.lines) + 2 * _PADDING

    def draw(self, x: float, y: float, *, width: float | None = None, height: float | None = None) -> str:
        wide = width or self.width
        parts = [svg.box(x, y, wide, height or self.height, self.colours)]
        if self.heat:
            parts.append(svg.glow(x, y, wide, height or self.height, _HOT, self.heat))
        baseline = y + _PADDING
        for words, face in self.lines:
            baseline += face.line
            parts.append(svg.text(x + wide / 2, baseline - face.size * 0.42, words, face))
        return svg.group(parts, self.title)


@dataclass(frozen=True)
class _Step:
    """A box above the joins, and the sources that enter it from the right, each through its store."""

    piece: _Piece
    sources: tuple[_Piece, ...] = ()

    @property
    def height(self) -> float:
        stack = sum(source.height for source in self.sources) + _STACK * (len(self.sources) - 1)
        return max(self.piece.height, stack)

    @property
    def beside(self) -> float:
        return max((source.width + _ENTRY for source in self.sources), default=0.0)

    def draw(self, x: float, y: float) -> list[str]:
        parts = [self.piece.draw(x, y, height=self.height)]
        right = x + self.piece.width
        for source in self.sources:
            middle = y + source.height / 2
            parts.append(svg.stroke((right + _ENTRY, middle), (right + _ENTRY / 2, middle), _LINE))
            parts.append(svg.pointer((right + _ENTRY / 2, middle), right + 3, _LINE))
            parts.append(svg.store(right + _ENTRY / 2 + 4, middle - 11, _BASE_STORE))
            parts.append(source.draw(right + _ENTRY, y))
            y += source.height + _STACK
        return parts


@dataclass(frozen=True)
class _Placed:
    """A node of the plan with its box, its horizontal position and its placed inputs."""

    plan: PhysicalPlan
    piece: _Piece
    orders: tuple[tuple[str, ...], ...]
    """The probe order of every input, as lines."""
    left: float
    width: float
    inputs: tuple[_Placed, ...] = ()
    operated: str = ""
    """The shape of the input operator that its rows pass before they enter the store."""

    @property
    def is_derived(self) -> bool:
        """True if its store holds something other than the rows of a relation."""
        return bool(self.operated) or isinstance(self.plan, JoinNode)

    @property
    def centre(self) -> float:
        return self.left + self.width / 2

    @property
    def height(self) -> float:
        most = max((len(lines) for lines in self.orders), default=0)
        return self.piece.height + (most * _QUIET.line + 6 if most else 0)


@dataclass(frozen=True)
class _Labels:
    """The texts and colours of a plan's parts."""

    graph: JoinGraph
    notes: Mapping[str, str]
    added: Mapping[str, tuple[str, ...]]
    """The predicates of its joins."""
    heat: Mapping[str, float]
    shared: frozenset[str]
    """The shapes of joins that are shared."""


def _place(labels: _Labels, plan: PhysicalPlan, left: float, least: float = 0) -> _Placed:
    """Places a plan from `left` onwards, with a minimum width."""
    if isinstance(plan, Leaf):
        piece = _source_piece(labels.graph.relation(plan.relation), labels.notes.get(plan.relation, ""))
        return _Placed(plan, piece, (), left, max(piece.width, least))
    assert not isinstance(plan, Shared), "the picture is of the plan without braces"
    if isinstance(plan, InputOperator):
        return replace(_place(labels, plan.input, left, least), operated=plan.shape)
    orders = tuple(" → ".join(probe_path(plan, position, labels.graph)) for position in range(len(plan.inputs)))
    inputs: list[_Placed] = []
    at = left
    floor = max(_JOIN_WIDTH, least)
    share = (floor - _GAP * (len(plan.inputs) - 1)) / len(plan.inputs)
    for child, order in zip(plan.inputs, orders, strict=True):
        wide = max(share, min(_QUIET.width(order) + 12, _WIDEST_ORDER))
        inputs.append(_place(labels, child, at, wide))
        at = inputs[-1].left + inputs[-1].width + _GAP
    width = at - _GAP - left
    wrapped = tuple(tuple(_QUIET.wrap(order, child.width - 12, 3)) for order, child in zip(orders, inputs, strict=True))
    is_shared = plan.shape in labels.shared
    piece = _join_piece(plan, labels.added[plan.shape], width, labels.notes.get(plan.shape, ""), is_shared=is_shared)
    piece = replace(piece, heat=labels.heat.get(plan.shape, 0.0))
    return _Placed(plan, piece, wrapped, left, width, tuple(inputs))


def _source_piece(relation: Relation, note: str) -> _Piece:
    head = relation.name if relation.name == relation.stream else f"{relation.name} = {relation.stream}"
    lines = [(head, _TITLE), (str(relation.window), _QUIET)]
    title = f"{head} {relation.window}"
    if relation.filter is not None:
        lines += [(words, _CODE) for words in _CODE.wrap(str(relation.filter), _WIDEST_LEAF - 2 * _PADDING, 4)]
        title += f" WHERE {relation.filter}"
    lines += _note_lines(note, _WIDEST_LEAF)
    width = max(_LEAF_WIDTH, *(face.width(words) + 2 * _PADDING for words, face in lines))
    return _Piece(tuple(lines), _SOURCE, width, title)


def _join_piece(node: JoinNode, added: tuple[str, ...], width: float, note: str, *, is_shared: bool) -> _Piece:
    kind = "join" if len(node.inputs) == 2 else f"{len(node.inputs)}-way join"
    lines = [(f"shared {kind}" if is_shared else kind, _TITLE)]
    if not added:
        lines.append(("every pair within the windows", _LABEL))
    wrap = partial(_CODE.wrap, width=width - 2 * _PADDING, most=3)
    lines += [(words, _CODE) for condition in added for words in wrap(condition)]
    lines += _note_lines(note, width)
    colours = _SHARED if is_shared else _JOIN
    return _Piece(tuple(lines), colours, width, f"{node}: {' AND '.join(added) or 'cross product'}")


def _note_lines(note: str, width: float) -> list[tuple[str, Face]]:
    return [(words, _NOTE) for part in note.splitlines() for words in _NOTE.wrap(part, width - 2 * _PADDING, 3)]


def _result_boxes(query: Query, notes: Mapping[str, str]) -> list[_Step]:
    """Draws the results and, below them, the grouping and the outer joins, if any."""
    bright, pale = Face(13, "#ffffff", bold=True), Face(11, "#cfd8df", mono=True)
    names = ", ".join(output.name for output in query.outputs)
    lines = [("results", bright), *((words, pale) for words in pale.wrap(names, 380, 2))]
    lines += [(words, Face(10.5, "#f4c9a8")) for words, _ in _note_lines(notes.get(OUTPUT, ""), 380)]
    outputs = ", ".join(f"{output.expression} AS {output.name}" for output in query.outputs)
    boxes = [_Step(_Piece(tuple(lines), _RESULT, _fitting(lines), outputs))]
    if query.grouping is not None:
        boxes.append(_Step(_grouping_piece(query.grouping)))
    for side in reversed(query.sides):
        sources = tuple(_source_piece(each, notes.get(each.name, "")) for each in side.own)
        boxes.append(_Step(_side_piece(side), sources))
    return boxes


def _side_piece(side: Side) -> _Piece:
    """Draws an outer, semi or anti join, whose input is the result of the joins below it."""
    title = f"{side.kind.value} join"
    lines = [(words, _TITLE) for words in _TITLE.wrap(f"{title} {', '.join(side.names)}", 420, 2)]
    lines += [(words, _CODE) for words in _CODE.wrap(f"ON {side.condition}", 420, 3) if side.condition]
    return _Piece(tuple(lines), _GROUP, _fitting(lines), title)


def _grouping_piece(grouping: Grouping) -> _Piece:
    keys = ", ".join(str(key) for key in grouping.keys)
    title = f"group by {keys}" if keys else "one group"
    aggregates = [str(aggregate) for aggregate in grouping.aggregates]
    lines = [(words, _TITLE) for words in _TITLE.wrap(title, 420, 2)]
    lines += [(words, _CODE) for words in _CODE.wrap(", ".join(aggregates), 420, 3)]
    if grouping.having is not None:
        spelled = re.sub(r"\baggregate(\d+)\b", lambda found: aggregates[int(found[1])], str(grouping.having))
        spelled = re.sub(r"\bkey(\d+)\b", lambda found: str(grouping.keys[int(found[1])]), spelled)
        lines += [(words, _CODE) for words in _CODE.wrap(f"HAVING {spelled}", 420, 2)]
    pace = f"sessions of {duration_text(grouping.gap)}" if grouping.gap else f"every {duration_text(grouping.slide)}"
    lines.append((pace, _QUIET))
    return _Piece(tuple(lines), _GROUP, _fitting(lines), title)


def _fitting(lines: list[tuple[str, Face]]) -> float:
    return max(160.0, *(face.width(words) + 4 * _PADDING for words, face in lines))


def _levels(root: _Placed) -> list[float]:
    """Returns the height of every level, sources first."""
    levels = [0.0] * (height(root.plan) + 1)
    for node in _all(root):
        level = height(node.plan)
        levels[level] = max(levels[level], node.height)
    return levels


def _all(node: _Placed) -> list[_Placed]:
    return [node, *_inner(node)]


def _inner(node: _Placed) -> list[_Placed]:
    return [below for child in node.inputs for below in _all(child)]


@dataclass(frozen=True)
class _Frame:
    """The layout: the horizontal offset, the bottom of each level, the top of the sources."""

    shift: float
    bottoms: tuple[float, ...]
    source_top: float


def _draw(node: _Placed, frame: _Frame) -> list[str]:
    bottom = frame.bottoms[height(node.plan)]
    if isinstance(node.plan, Leaf):
        # Sources are aligned at the top, so that their windows are level regardless of their filters.
        left = node.centre + frame.shift - node.piece.width / 2
        return [node.piece.draw(left, frame.source_top, height=bottom - frame.source_top)]
    parts = [node.piece.draw(node.left + frame.shift, bottom - node.height, width=node.width, height=node.height)]
    most = max(len(lines) for lines in node.orders)
    for child, order in zip(node.inputs, node.orders, strict=True):
        x = child.centre + frame.shift
        baseline = bottom - _PADDING + 3 - (most - 1) * _QUIET.line
        for words in order:
            parts.append(svg.text(x, baseline - 3, words, _QUIET))
            baseline += _QUIET.line
        is_join = isinstance(child.plan, JoinNode)
        below = frame.bottoms[height(child.plan)] - child.height if is_join else frame.source_top
        parts.append(svg.line(x, below, bottom + 46, _LINE))
        parts.append(svg.store(x, bottom + 24, _INNER_STORE if child.is_derived else _BASE_STORE))
        parts.append(svg.line(x, bottom + 24, bottom + 3, _LINE, arrow=True))
        if child.is_derived:
            label = child.operated or shape(child.plan)
            parts.append(svg.text(x + 22, bottom + 39, label, _QUIET, anchor="start"))
        parts += _draw(child, frame)
    return parts


def _legend(y: float, *, inner: bool) -> str:
    entries = [("rows inside their window", _BASE_STORE)]
    if inner:
        entries.append(("intermediate results kept as state", _INNER_STORE))
    x, parts = _MARGIN, []
    for words, colours in entries:
        parts.append(svg.store(x + 9, y - 7, colours, width=18, height=14))
        parts.append(svg.text(x + 24, y + 4, words, _LABEL, anchor="start"))
        x += _LABEL.width(words) + 44
    return "".join(parts)
