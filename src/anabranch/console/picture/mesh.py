"""A mesh as an underground map: rows enter at the left, results leave at the right.

Every relation with several routes has its classifier as a tree from left to right, and a coloured line per route that
stops at the operators in order; the thickness of a line shows its rows. Relations with one route are below, on one thin
line each. A stop has the colour of the probed relation, so the first probe of each line is easy to see. Outer, semi and
anti joins are bars across all lines before the results; their streams and tables enter from below. Limit: readable up
to about eight relations with as many routes each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType

from anabranch.console.picture import svg
from anabranch.console.picture.svg import Colours, Drawing, Face
from anabranch.plan.classifier import Assign, CategoryTest, Classifier, NumberTest, Test, depth, leaves, walk
from anabranch.plan.classifier import routes as routes_of
from anabranch.plan.join_graph import is_selection
from anabranch.plan.mesh import Mesh, RelationRoutes, Route, checked_relation, is_existence_probe, selected
from anabranch.plan.query import Query
from anabranch.plan.sides import Side

_PAPER, _INK, _SOFT, _LINE = "#fcfbf8", "#1f2a33", "#66737d", "#8795a1"
_ROUTES = ("#3f73a8", "#c0562f", "#3d8a5f", "#8a5ba6", "#b5891c", "#3b8f95", "#a63d68", "#6a6f2a")
_STOPS = (
    Colours("#d5e4f3", "#3f73a8"),
    Colours("#f7ddd0", "#c0562f"),
    Colours("#d6ebdf", "#3d8a5f"),
    Colours("#e8def0", "#8a5ba6"),
    Colours("#f6e8c3", "#b5891c"),
    Colours("#d3ebec", "#3b8f95"),
    Colours("#f4d7e2", "#a63d68"),
    Colours("#e6e7cf", "#6a6f2a"),
)
_SOURCE, _TEST = Colours("#ffffff", "#9aa8b4"), Colours("#ffffff", "#66737d")
_CHECK = Colours("#ffffff", "#66737d")
_RESULT = Colours(_INK, _INK)
_SIDE = Colours("#eee9f5", "#74599c")
_BAR = 28.0
"""The width of an outer, semi or anti join."""

_TITLE = Face(13, _INK, bold=True)
_STOP = Face(11, _INK, bold=True)
_QUIET = Face(10.5, _SOFT, mono=True)
_SMALL = Face(9.5, _SOFT)
_NOTE = Face(10.5, "#9a3b1f")
_HEAD = Face(12, _SOFT, mono=True)

_MARGIN, _LANE, _PART, _GAP = 28.0, 40.0, 30.0, 22.0
_STOP_HEIGHT, _TEST_HEIGHT, _BEND, _SHARE = 24.0, 24.0, 46.0, 126.0
_THINNEST, _THICKEST = 1.6, 13.0
_LISTED = 24
"""The number of characters shown of a list of categories."""


@dataclass(frozen=True)
class RouteNote:
    """The figures of a route: the share of its relation's rows, a remark, and the rows left after each stop."""

    share: float
    words: str = ""
    left: tuple[float, ...] = ()
    """Combinations per input row after each stop; empty if not measured."""


NO_NOTES: Mapping[tuple[str, int], RouteNote] = MappingProxyType({})


def mesh_svg(
    query: Query,
    mesh: Mesh,
    *,
    routes: Mapping[tuple[str, int], RouteNote] = NO_NOTES,
    notes: Mapping[str, str] = MappingProxyType({}),
    below: Sequence[Drawing] = (),
) -> str:
    """Draws the mesh as an SVG document; `routes` has notes by relation and route number, `notes` by relation."""
    drawings = [draw_mesh(query, mesh, routes, notes), *below]
    return svg.stacked(drawings, title=f"plan {mesh}", background=_PAPER, arrow=_LINE)


def draw_mesh(
    query: Query, mesh: Mesh, routes: Mapping[tuple[str, int], RouteNote], notes: Mapping[str, str]
) -> Drawing:
    """Draws the mesh as a part of a picture."""
    frame = _Frame.of(query, mesh, notes)
    several = [way for way in mesh.ways if len(way.routes) > 1]
    single = [way for way in mesh.ways if len(way.routes) == 1]
    parts = [svg.text(_MARGIN, _MARGIN + 8, _heading(several, single), _HEAD, anchor="start")]
    top = y = _MARGIN + 34.0
    for way in several:
        height = len(leaves(way.classifier)) * _LANE
        parts += _draw_way(frame, way, y, height, routes)
        y += height + _PART
    for way in single:
        parts += _draw_single(frame, way, y, routes.get((way.relation, 0)))
        y += _LANE
    bottom = y = y - (0 if single else _PART)
    for place, side in enumerate(query.sides):
        y += _PART / 2
        parts += _draw_side(frame, side, place, top, y)
        y += _LANE * len(side.names)
    outputs = ", ".join(f"{output.expression} AS {output.name}" for output in query.outputs)
    box = [svg.box(frame.results, top, 34, bottom - top, _RESULT)]
    box.append(svg.upright(frame.results + 17, (top + bottom) / 2, "results", Face(13, "#ffffff", bold=True)))
    parts.append(svg.group(box, outputs))
    if routes:
        measured = any(note.left for note in routes.values())
        words = "a line is as thick as the rows on it"
        words += "; below it, what is left of a hundred rows" if measured else ""
        parts.append(svg.text(frame.results + 34, y + 20, words, _SMALL, anchor="end"))
    return Drawing(frame.results + 34 + _MARGIN, y + _MARGIN + 8, tuple(parts))


def _heading(several: Sequence[RelationRoutes], single: Sequence[RelationRoutes]) -> str:
    lines = sum(len(way.routes) for way in several)
    told = f"mesh: rows of {', '.join(way.relation for way in several)} by {lines} routes" if several else "mesh"
    return f"{told}, of {', '.join(way.relation for way in single)} by one each" if single else told


@dataclass(frozen=True)
class _Frame:
    """The columns of the picture, shared by all relations."""

    query: Query
    notes: Mapping[str, str]
    source: float
    """The width of the boxes at the left."""
    test: float
    """The width of a test."""
    tests: int
    """The number of tests side by side."""
    stop: float
    """The width of a stop."""
    stops: int
    are_shared: bool
    """Whether several branches of some classifier lead to one route."""

    @classmethod
    def of(cls, query: Query, mesh: Mesh, notes: Mapping[str, str]) -> _Frame:
        heads = [_head(query, name) for name in query.whole.names]
        source = max(_TITLE.width(head) for head in heads)
        source = max(source, *(_QUIET.width(str(relation.window)) for relation in query.whole.relations))
        source = max(source, *(_NOTE.width(notes.get(name, "")) for name in mesh.relations)) + 20
        drawn = [way.classifier for way in mesh.ways if len(way.routes) > 1]
        tests = [test for tree in drawn for test in _tests(tree)]
        levels = max((depth(tree) for tree in drawn), default=0)
        widest = max((_QUIET.width(_test_text(test)) for test in tests), default=0.0) + 16
        stops = [operator for way in mesh.ways for route in way.routes for operator in route.operators]
        stop = max((_STOP.width(operator) for operator in stops), default=0.0) + 22
        most = max((len(route.operators) for way in mesh.ways for route in way.routes), default=0)
        are_shared = any(len(leaves(tree)) > len(routes_of(tree)) for tree in drawn)
        return cls(query, notes, source, widest, levels, stop, most, are_shared)

    @property
    def first_test(self) -> float:
        return _MARGIN + self.source + _BEND

    @property
    def first_leaf(self) -> float:
        """The x at which the branches of a route have merged."""
        return self.first_test + self.tests * (self.test + _BEND) + (_BEND if self.are_shared else 0)

    @property
    def first_stop(self) -> float:
        return self.first_leaf + _SHARE

    def stop_at(self, place: int) -> float:
        return self.first_stop + place * (self.stop + _GAP)

    def bar_at(self, side: int) -> float:
        """Returns the x of an outer, semi or anti join; the results are after the last one."""
        return self.stop_at(self.stops) + 8 + side * (_BAR + _GAP)

    @property
    def results(self) -> float:
        return self.bar_at(len(self.query.sides))


@dataclass(frozen=True)
class _Part:
    """A relation with several routes: its position, the positions of its routes, and their figures."""

    frame: _Frame
    way: RelationRoutes
    top: float
    lanes: Mapping[int, float]
    routes: Mapping[tuple[str, int], RouteNote]

    def note(self, route: int) -> RouteNote:
        return self.routes.get((self.way.relation, route), RouteNote(1 / len(self.way.routes)))


def _draw_way(
    frame: _Frame, way: RelationRoutes, y: float, height: float, routes: Mapping[tuple[str, int], RouteNote]
) -> list[str]:
    """Draws the source, the classifier and the lines of a relation with several routes."""
    places: dict[int, list[int]] = {}
    for place, (route, _) in enumerate(leaves(way.classifier)):
        places.setdefault(route, []).append(place)
    order = sorted(places, key=lambda route: sum(places[route]) / len(places[route]))
    lanes = {route: y + (place + 0.5) * height / len(order) for place, route in enumerate(order)}
    part = _Part(frame, way, y, lanes, routes)
    lines, boxes = _branch(part, way.classifier, 0, 0, (_MARGIN + frame.source, y + height / 2), "")
    for route, lane in lanes.items():
        note = part.note(route)
        lines += _line(frame, way.routes[route], lane, _colour(route), note)
        boxes += _stops(frame, way.routes[route], lane, note)
        boxes.append(_share_text(frame, lane, note if (way.relation, route) in routes else None))
    return [*lines, _source_box(frame, way.relation, y + height / 2), *boxes]


def _branch(
    part: _Part, tree: Classifier, level: int, first: int, start: tuple[float, float], label: str
) -> tuple[list[str], list[str]]:
    """Draws a branch of a classifier from a point; `first` is the number of its first leaf."""
    frame = part.frame
    x, y = frame.first_test + level * (frame.test + _BEND), _middle(tree, first, part.top)
    if isinstance(tree, Assign):
        ways = (start, (start[0] + _BEND, y)), ((start[0] + _BEND, y), (frame.first_leaf, part.lanes[tree.route]))
        width = _width(part.note(tree.route).share)
        lines = [svg.ribbon(begin, end, _colour(tree.route), width) for begin, end in ways]
        return lines, [_label(start[0] + _BEND + 5, y, label, width)]
    lines = [svg.ribbon(start, (x, y), _LINE, 3)]
    boxes = [svg.box(x, y - _TEST_HEIGHT / 2, frame.test, _TEST_HEIGHT, _TEST, radius=12)]
    boxes.append(svg.text(x + frame.test / 2, y + 4, _test_text(tree), _QUIET))
    boxes = [svg.group(boxes, _test_story(tree)), _label(x - 5, y, label, 3, anchor="end")]
    for child, at, words in (
        (tree.first, first, "yes"),
        (tree.second, first + len(leaves(tree.first)), "no"),
    ):
        below = _branch(part, child, level + 1, at, (x + frame.test, y), words)
        lines, boxes = [*lines, *below[0]], [*boxes, *below[1]]
    return lines, boxes


def _middle(tree: Classifier, first: int, top: float) -> float:
    """Returns the y of a branch: a leaf is in its lane, a test midway between its branches."""
    if isinstance(tree, Assign):
        return top + (first + 0.5) * _LANE
    return (_middle(tree.first, first, top) + _middle(tree.second, first + len(leaves(tree.first)), top)) / 2


def _draw_single(frame: _Frame, way: RelationRoutes, y: float, note: RouteNote | None) -> list[str]:
    """Draws the source and the single line of a relation."""
    lane, known = y + _LANE / 2, RouteNote(0.0) if note is None else RouteNote(0.0, note.words, note.left)
    parts = [svg.ribbon((_MARGIN + frame.source, lane), (frame.first_leaf, lane), _LINE, _THINNEST)]
    parts += _line(frame, way.routes[0], lane, _LINE, RouteNote(0.0))
    name = _head(frame.query, way.relation)
    box = [svg.box(_MARGIN, lane - 14, frame.source, 28, _SOURCE)]
    box.append(svg.text(_MARGIN + frame.source / 2, lane + 4.5, name, Face(11.5, _INK, bold=True)))
    return [*parts, svg.group(box, name), *_stops(frame, way.routes[0], lane, known)]


def _draw_side(frame: _Frame, side: Side, place: int, top: float, y: float) -> list[str]:
    """Draws an outer, semi or anti join as a bar, and its streams and tables from y downwards.

    The bar ends where its own rows enter, so that the rows of later outer joins pass below it.
    """
    x, bottom, words = frame.bar_at(place), y + _LANE * len(side.names), f"{side.kind.value} join"
    parts = []
    for lane, name in enumerate(side.names):
        middle, head = y + (lane + 0.5) * _LANE, _head(frame.query, name)
        parts.append(svg.ribbon((_MARGIN + frame.source, middle), (x, middle), _LINE, _THINNEST))
        box = [svg.box(_MARGIN, middle - 14, frame.source, 28, _SOURCE)]
        box.append(svg.text(_MARGIN + frame.source / 2, middle + 4.5, head, Face(11.5, _INK, bold=True)))
        parts.append(svg.group(box, f"{head} {frame.query.whole.relation(name).window}"))
    bar = [svg.box(x, top, _BAR, bottom - top, _SIDE)]
    bar.append(svg.upright(x + _BAR / 2, (top + bottom) / 2, f"{words} {', '.join(side.names)}", _STOP))
    return [*parts, svg.group(bar, str(side))]


def _line(frame: _Frame, route: Route, lane: float, colour: str, note: RouteNote) -> list[str]:
    """Draws a route to the results; if measured, its thickness shows the remaining rows."""
    ends = [frame.first_leaf, *(frame.stop_at(place) + frame.stop / 2 for place in range(len(route.operators)))]
    ends.append(frame.results)
    shares = [note.share, *(note.share * left for left in note.left)] if note.left else [note.share]
    parts = []
    for place, (begin, end) in enumerate(pairwise(ends)):
        share = shares[min(place, len(shares) - 1)]
        parts.append(svg.ribbon((begin, lane), (end, lane), colour, _width(share)))
    return parts


def _stops(frame: _Frame, route: Route, lane: float, note: RouteNote) -> list[str]:
    """Draws the operators of a route, and below each, if known, the percentage of rows left."""
    parts = []
    for place, operator in enumerate(route.operators):
        x = frame.stop_at(place)
        stop = [
            svg.box(x, lane - _STOP_HEIGHT / 2, frame.stop, _STOP_HEIGHT, _stop_colours(frame, operator), radius=12)
        ]
        stop.append(svg.text(x + frame.stop / 2, lane + 4, operator, _STOP))
        parts.append(svg.group(stop, _story(frame, operator)))
        if place < len(note.left):
            words = f"{100 * note.left[place]:,.3g}"
            parts.append(svg.text(x + frame.stop + _GAP / 2, lane + _STOP_HEIGHT / 2 + 7, words, _SMALL))
    return parts


def _share_text(frame: _Frame, lane: float, note: RouteNote | None) -> str:
    if note is None:
        return ""
    x = frame.first_leaf + 36
    share = svg.text(x, lane - _width(note.share) / 2 - 4, f"{note.share:.0%}", _STOP, anchor="start")
    return share + svg.text(x, lane + _width(note.share) / 2 + 12, note.words, _SMALL, anchor="start")


def _source_box(frame: _Frame, name: str, centre: float) -> str:
    note = frame.notes.get(name, "")
    head, window = _head(frame.query, name), str(frame.query.graph.relation(name).window)
    height = 44.0 + (_NOTE.line if note else 0)
    middle, top = _MARGIN + frame.source / 2, centre - height / 2
    parts = [svg.box(_MARGIN, top, frame.source, height, _SOURCE)]
    parts.append(svg.text(middle, top + 19, head, _TITLE))
    parts.append(svg.text(middle, top + 35, window, _QUIET))
    if note:
        parts.append(svg.text(middle, top + 35 + _NOTE.line, note, _NOTE))
    return svg.group(parts, f"{head} {window}")


def _label(x: float, y: float, words: str, width: float, *, anchor: str = "start") -> str:
    """Labels a branch: yes above its line, no below it."""
    if not words:
        return ""
    return svg.text(x, y - width / 2 - 4 if words == "yes" else y + width / 2 + 11, words, _SMALL, anchor=anchor)


def _head(query: Query, name: str) -> str:
    stream = query.whole.relation(name).stream
    return name if name == stream else f"{name} = {stream}"


def _story(frame: _Frame, operator: str) -> str:
    if is_selection(operator):
        return f"checks {selected(operator, frame.query.graph)}"
    if is_existence_probe(operator):
        return f"drops rows without a match in {_head(frame.query, checked_relation(operator))}"
    return f"looks up {_head(frame.query, operator)}"


def _stop_colours(frame: _Frame, operator: str) -> Colours:
    """Returns the colours of the probed relation, on white for an existence probe; white for predicates."""
    if is_selection(operator):
        return _CHECK
    if is_existence_probe(operator):
        return replace(_stop_colours(frame, checked_relation(operator)), fill=_CHECK.fill)
    return _STOPS[frame.query.graph.names.index(operator) % len(_STOPS)]


def _colour(route: int) -> str:
    return _ROUTES[route % len(_ROUTES)]


def _width(share: float) -> float:
    """Returns the width of a line: proportional to the square root of its share, so that small shares are visible."""
    return min(_THICKEST, max(_THINNEST, 10 * math.sqrt(share)))


def _tests(tree: Classifier) -> list[Test]:
    return [node for node in walk(tree) if not isinstance(node, Assign)]


def _test_text(test: Test) -> str:
    """Shortens a test; the full text is the tooltip."""
    missing = " or none" if test.null_first else ""
    match test:
        case NumberTest(attribute=name, threshold=value):
            return f"{name} ≤ {_number(value)}{missing}"
        case CategoryTest(attribute=name, values=values):
            listed = ", ".join(values)
            return f"{name} in {listed if len(listed) <= _LISTED else listed[: _LISTED - 1] + '…'}{missing}"


def _test_story(test: Test) -> str:
    missing = " or has none" if test.null_first else ""
    if isinstance(test, NumberTest):
        return f"{test.attribute} is at most {test.threshold!r}{missing}"
    return f"{test.attribute} is one of {', '.join(test.values)}{missing}"


def _number(value: float) -> str:
    """Formats a threshold.

    >>> _number(0.3512345), _number(1_500_012_345.5)
    ('0.3512', '1,500,012,346')
    """
    is_plain = 1e4 <= abs(value) < 1e15
    return f"{value:,.0f}" if is_plain else f"{value:.4g}"
