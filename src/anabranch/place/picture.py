"""Draws a network: sites, links by their traffic, operators at their sites, shared operators.

Sites that only forward data are small and unnamed, so that a hundred of them remain readable; sites with a source, a
sink or a join are named and large. Each name takes the best of four positions around its site. A link with less than a
fifth of its bandwidth left is red. Needs matplotlib.
"""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from pathlib import Path

import networkx as nx
import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from anabranch.lang.sizes import size_text
from anabranch.place.landscape import Landscape

SOURCE, JOIN, SHARED, SINK, PLAIN = "#2a7fb8", "#e08214", "#c51b7d", "#4d9221", "#bbbbbb"
BUSY, IDLE, NARROW = "#7a7a7a", "#d9d9d9", "#c0392b"
WIDTH, HEIGHT = 14.0, 11.0
FEW = 40
"""Up to this number of sites, all are named and links show their traffic."""


def save(landscape: Landscape, path: Path, title: str) -> None:
    """Draws the landscape into a file; the suffix is the format."""
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    draw(landscape, figure, title)
    # Without a date, the same landscape gives the same file.
    figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)


def svg(landscape: Landscape, title: str) -> bytes:
    """Returns a picture of the landscape that is half as high."""
    figure, drawn = Figure(figsize=(WIDTH, HEIGHT / 2), layout="constrained"), io.BytesIO()
    draw(landscape, figure, title)
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    return drawn.getvalue()


def draw(landscape: Landscape, figure: Figure, title: str) -> None:
    """Draws the network into a figure."""
    topology = landscape.topology
    places = _layout(landscape)
    axes = figure.subplots()
    axes.set_title(title)
    axes.set_axis_off()
    busy = landscape.traffic
    most = float(busy.max(initial=0.0)) or 1.0
    widths = 0.6 + 7.0 * np.sqrt(busy / most)
    nearly_full = busy > 0.8 * topology.bandwidths
    colours = np.where(nearly_full, NARROW, np.where(busy > 0.0, BUSY, IDLE)).tolist()
    segments = [(places[low], places[high]) for low, high in topology.pairs]
    axes.add_collection(LineCollection(segments, linewidths=widths, colors=colours, zorder=1, capstyle="round"))
    if len(topology.sites) <= FEW:
        for (low, high), volume in zip(topology.pairs, busy, strict=True):
            if volume > 0:
                middle = (places[low] + places[high]) / 2
                axes.annotate(
                    f"{size_text(round(volume))}/s",
                    middle,
                    ha="center",
                    va="center",
                    fontsize=6,
                    zorder=2,
                    bbox={"boxstyle": "round,pad=0.1", "fc": "white", "ec": "none", "alpha": 0.85},
                )
    readers = Counter(taken.producer for operator in landscape.operators.values() for taken in operator.inputs)
    sources = {operator.site for operator in landscape.operators.values() if operator.is_base}
    labels: dict[int, list[str]] = defaultdict(list)
    marks: dict[int, str] = {}
    for name, operator in landscape.operators.items():
        if operator.is_base:
            labels[operator.site].insert(0, name[1:])
            marks.setdefault(operator.site, SOURCE)
    sinks = Counter(
        operator.site
        for name, operator in landscape.operators.items()
        if len(operator.inputs) == 1 and not readers[name]
    )
    for site, count in sinks.items():
        labels[site].append("sink" if count == 1 else f"{count} sinks")
        marks.setdefault(site, SINK)
    joins: dict[int, list[int]] = defaultdict(list)
    for name, operator in landscape.operators.items():
        if operator.is_join:
            joins[operator.site].append(readers[name])
    for site, uses in joins.items():
        shared = sum(count > 1 for count in uses)
        many = f"{len(uses)} join{'' if len(uses) == 1 else 's'}"
        labels[site].append(f"{many}, {shared} shared" if shared else many)
        marks[site] = SHARED if shared else JOIN
    everyone = range(len(topology.sites))
    plain = [site for site in everyone if site not in marks]
    axes.scatter(*_columns(places[plain]), s=12, color=PLAIN, zorder=2)
    for site, colour in marks.items():
        size = 90 + 30 * len(joins.get(site, ())) ** 0.5
        shape = "s" if site in sources else "o"
        axes.scatter(*_columns(places[[site]]), s=size, color=colour, marker=shape, zorder=3, linewidths=0)
    named = [site for site in marks if len(marks) <= FEW or marks[site] != SINK]
    if len(everyone) <= FEW:
        named = list(everyone)
    texts = {site: "\n".join([topology.sites[site].name, *labels[site]]) for site in named}
    for site, (x, y) in _offsets(texts, places, [site for site in everyone if site in marks]).items():
        axes.annotate(
            texts[site],
            places[site],
            xytext=(x, y),
            textcoords="offset points",
            ha="left" if x > 0 else "right",
            va="bottom" if y > 0 else "top",
            fontsize=7,
            zorder=4,
            bbox={"boxstyle": "round,pad=0.15", "fc": "white", "ec": marks.get(site, PLAIN), "alpha": 0.8, "lw": 0.6},
        )
    shown = (
        ("s", SOURCE, "source (any square)"),
        ("o", JOIN, "joins"),
        ("o", SHARED, "joins that several read"),
        ("o", SINK, "sinks only"),
        ("o", PLAIN, "relay"),
    )
    handles = [Line2D([], [], marker=shape, ls="", color=colour, label=text) for shape, colour, text in shown]
    handles.append(Line2D([], [], color=BUSY, lw=5, label=f"link, up to {size_text(round(most))}/s"))
    if nearly_full.any():
        handles.append(Line2D([], [], color=NARROW, lw=5, label="link more than 80 % full"))
    # Below the network, so that it covers no site.
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8)
    axes.autoscale_view()
    axes.margins(0.08)


def _offsets(texts: dict[int, str], places: np.ndarray, marked: list[int]) -> dict[int, tuple[int, int]]:
    """Chooses for each name the position beside its site with the least overlap with other names and sites."""
    span = np.ptp(places, axis=0)
    points = (places - places.min(axis=0)) / np.where(span > 0, span, 1.0) * (65 * WIDTH, 65 * HEIGHT)
    taken: list[tuple[float, float, float, float]] = [(x - 6, y - 6, x + 6, y + 6) for x, y in points[marked]]
    found = {}
    for site, text in texts.items():
        lines = text.split("\n")
        wide, high = 4.2 * max(map(len, lines)) + 4, 9.0 * len(lines) + 4
        boxes = {}
        for x, y in ((7, 5), (-7, 5), (7, -5), (-7, -5)):
            left = points[site][0] + (x if x > 0 else x - wide)
            low = points[site][1] + (y if y > 0 else y - high)
            boxes[x, y] = (left, low, left + wide, low + high)
        found[site] = min(boxes, key=lambda place: sum(_overlap(boxes[place], other) for other in taken))
        taken.append(boxes[found[site]])
    return found


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> float:
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    return max(0.0, wide) * max(0.0, high)


def _layout(landscape: Landscape) -> np.ndarray:
    """Computes a deterministic layout in which near sites are near."""
    topology = landscape.topology
    everyone = np.arange(len(topology.sites))
    distances = topology.distances(everyone)
    graph = nx.Graph()
    graph.add_nodes_from(range(len(everyone)))
    graph.add_edges_from((topology.position(link.left), topology.position(link.right)) for link in topology.links)
    # Square roots keep long links from shrinking every stub to a dot.
    wanted = {a: {b: float(np.sqrt(distances[a, b])) for b in range(len(everyone))} for a in range(len(everyone))}
    places = nx.kamada_kawai_layout(graph, dist=wanted)
    return np.array([places[site] for site in range(len(everyone))])


def _columns(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return points[:, 0], points[:, 1]
