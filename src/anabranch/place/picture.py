"""A picture of a network at work: sites, links as thick as their traffic, operators where they run, what is shared.

Sites that only pass data on are small and unnamed, so that a hundred of them stay readable; every site that is a
source, a sink or runs a join is named and drawn large. Needs matplotlib.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import networkx as nx
import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from anabranch.place.landscape import Landscape

SOURCE, JOIN, SHARED, SINK, PLAIN = "#2a7fb8", "#e08214", "#c51b7d", "#4d9221", "#bbbbbb"


def save(landscape: Landscape, path: Path, title: str) -> None:
    """Draws the landscape into a file whose suffix says how."""
    figure = Figure(figsize=(14, 11), layout="constrained")
    draw(landscape, figure, title)
    # Without a date the same landscape gives the same file.
    figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)


def draw(landscape: Landscape, figure: Figure, title: str) -> None:
    """Fills a figure with the network."""
    topology = landscape.topology
    places = _layout(landscape)
    axes = figure.subplots()
    axes.set_title(title)
    axes.set_axis_off()
    busy = landscape.traffic
    most = float(busy.max(initial=0.0)) or 1.0
    widths = 0.6 + 7.0 * np.sqrt(busy / most)
    colours = ["#d9d9d9" if volume == 0.0 else "#7a7a7a" for volume in busy]
    segments = [(places[low], places[high]) for low, high in topology.pairs]
    axes.add_collection(LineCollection(segments, linewidths=widths, colors=colours, zorder=1, capstyle="round"))
    readers = Counter(taken.producer for operator in landscape.operators.values() for taken in operator.inputs)
    sources = {operator.site for operator in landscape.operators.values() if operator.is_base}
    labels: dict[int, list[str]] = defaultdict(list)
    marks: dict[int, str] = {}
    for name, operator in landscape.operators.items():
        if operator.is_base:
            labels[operator.site].insert(0, name[1:])
            marks.setdefault(operator.site, SOURCE)
    sinks = Counter(operator.site for name, operator in landscape.operators.items() if operator.is_delivery)
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
    named = [site for site in marks if len(marks) <= 40 or marks[site] != SINK]
    if len(everyone) <= 40:
        named = list(everyone)
    for site in named:
        text = "\n".join([topology.sites[site].name, *labels[site]])
        axes.annotate(
            text,
            places[site],
            xytext=(7, 5),
            textcoords="offset points",
            fontsize=7,
            zorder=4,
            bbox={"boxstyle": "round,pad=0.15", "fc": "white", "ec": marks.get(site, PLAIN), "alpha": 0.8, "lw": 0.6},
        )
    shown = (
        (SOURCE, "source"),
        (JOIN, "joins"),
        (SHARED, "joins that several read"),
        (SINK, "sinks only"),
        (PLAIN, "relay"),
    )
    handles = [Line2D([], [], marker="o", ls="", color=colour, label=text) for colour, text in shown]
    handles.append(Line2D([], [], color="#7a7a7a", lw=5, label=f"link, up to {most:,.0f} bytes/s"))
    axes.legend(handles=handles, loc="lower left", fontsize=8)
    axes.autoscale_view()


def _layout(landscape: Landscape) -> np.ndarray:
    """Places such that near sites are near, the same every time."""
    topology = landscape.topology
    everyone = np.arange(len(topology.sites))
    distances = topology.distances(everyone)
    graph = nx.Graph()
    graph.add_nodes_from(range(len(everyone)))
    graph.add_edges_from((topology.position(link.left), topology.position(link.right)) for link in topology.links)
    # Square roots keep long-haul links from pressing every stub into a dot.
    wanted = {a: {b: float(np.sqrt(distances[a, b])) for b in range(len(everyone))} for a in range(len(everyone))}
    places = nx.kamada_kawai_layout(graph, dist=wanted)
    return np.array([places[site] for site in range(len(everyone))])


def _columns(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return points[:, 0], points[:, 1]
