"""Results as JSON, and as tables in two pages, each between its two markers: what counts, and everything.

A result file holds one invocation: the machine, the commit, every figure with all its values, and every Spark run. The
table is made from the newest full result of each scenario, so scenarios may be measured one at a time.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench
from benchmarks.figures import Bound, Figure
from benchmarks.job import ROOT

RESULTS = Path(__file__).parent / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
EVERYTHING = ROOT / "docs" / "measurements.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"

TOPICS: dict[str, tuple[str, ...]] = {
    "Rows like those of users, against Spark's own joins": ("auctions", "text-keys", "wide", "many-streams", "band"),
    "By the road that rows take, with the same JVM options on both sides": ("road-", "kafka-"),
    "Rows of numbers, against Spark's own joins": ("spark-", "sustained"),
    "Latency of a result": ("latency",),
    "Real-time mode over micro-batches": ("real-time",),
    "Against Flink's interval joins": ("flink",),
    "A trigger, a restart, large state": ("fixed-cost", "sink-", "restart", "large-", "cost-split", "window-growth"),
    "Tables that change": ("changing-table",),
    "More than one core": ("slots", "two-slots", "balance", "move-pause"),
    "In process": ("inprocess", "own-function", "count-windows", "more-sql"),
    "Several queries": ("sharing",),
    "Adapting": ("regret",),
    "Cost as it grows (slopes of the pictures below)": ("curve",),
}
"""By topic, how the names of its scenarios begin."""
OTHERS = "Others"
BESIDE = (": rows/s", ": CPU seconds", ": peak memory")
"""How the three ratios of a comparison with a rival's joins are named."""
Results = dict[str, dict[str, Any]]
"""By scenario, the result file that has its newest figures."""


def document(
    bench: Bench,
    begun: datetime,
    measured: dict[str, list[Figure]],
    failed: dict[str, str],
    beside: str | None = None,
) -> dict[str, Any]:
    """One invocation, as far as it is, as plain data; `beside` names what else ran on the machine."""
    return {
        "measured": begun.isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": machine(),
        "beside": beside,
        "quick": bench.is_quick,
        "scenarios": {name: [asdict(figure) for figure in figures] for name, figures in measured.items()},
        "curves": bench.curves,
        "failed": failed,
        "runs": [{"workload": key[1].name, "run": key[2], **run.summary} for key, run in bench.finished.items()],
    }


def machine() -> dict[str, str | int | float]:
    """What the numbers were measured on."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count() or 0,
        "memory_gigabytes": round(pages / 2**30, 1),
        "python": platform.python_version(),
        **{name: version(name) for name in ("pyspark", "pyarrow", "numpy", "numba", "polars", "duckdb")},
    }


def keep(found: dict[str, Any]) -> Path:
    """Writes the result file of an invocation, named by when it began."""
    RESULTS.mkdir(exist_ok=True)
    stamp = found["measured"].replace(":", "").replace("-", "")[:15]
    path = RESULTS / f"{stamp}.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    return path


def newest(results: Path = RESULTS) -> Results:
    """By scenario, the newest full result that has it."""
    found: Results = {}
    for path in sorted(results.glob("*.json")):
        result = json.loads(path.read_text())
        if not result["quick"]:
            found.update(dict.fromkeys(result["scenarios"], result))
    return found


def table(results: Results) -> str:
    """What was to be reached, and how we compare, by topic: joins against a rival's in one line each."""
    lines: list[str] = []
    for topic, entries in by_topic(results):
        beside = _beside(entries)
        in_line = [each for parts in beside.values() for each in parts]
        single = [each for each in entries if each.figure.bound is not None and each not in in_line]
        if not beside and not single:
            continue
        lines += [f"### {topic}", ""]
        if beside:
            lines += ["| what | rows/s | CPU | peak memory | scenario |", "|---|---|---|---|---|"]
            lines += [_line(label, *map(_cell, parts), parts[0].scenario) for label, parts in beside.items()]
            lines.append("")
        if single:
            lines += ["| what | to reach | measured (least to most) | reached | scenario |", "|---|---|---|---|---|"]
            lines += [
                _line(each.figure.what, _goal(each.figure), spread(each.figure), _reached(each.figure), each.scenario)
                for each in single
            ]
            lines.append("")
    return "\n".join([*lines[:-1], *_conditions(results)])


def everything(results: Results) -> str:
    """Every measured value, by topic, with the commit it was measured at."""
    lines: list[str] = []
    for topic, entries in by_topic(results):
        lines += [f"## {topic}", "", "| scenario | what | measured (least to most) | runs | commit |"]
        lines.append("|---|---|---|---|---|")
        lines += [
            _line(each.scenario, each.figure.what, spread(each.figure), str(len(each.figure.values)), each.commit)
            for each in entries
        ]
        lines.append("")
    return "\n".join([*lines[:-1], *_conditions(results)])


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


@dataclass(frozen=True)
class Entry:
    """A figure with where it is from."""

    scenario: str
    figure: Figure
    commit: str


def by_topic(results: Results) -> list[tuple[str, list[Entry]]]:
    """The figures of all scenarios, topic by topic in the order of the page; topics without figures are left out."""
    found: dict[str, list[Entry]] = {topic: [] for topic in (*TOPICS, OTHERS)}
    for scenario, result in results.items():
        topic = next((topic for topic, begins in TOPICS.items() if scenario.startswith(begins)), OTHERS)
        found[topic] += [Entry(scenario, figure_of(entry), result["commit"]) for entry in result["scenarios"][scenario]]
    return [(topic, entries) for topic, entries in found.items() if entries]


def _beside(entries: list[Entry]) -> dict[str, list[Entry]]:
    """Comparisons with a rival's joins by what was joined: rows a second, CPU and memory."""
    found: dict[str, list[Entry]] = {}
    for each in entries:
        label, over, rival = each.figure.what.rpartition(" over ")
        if over and label.endswith(BESIDE):
            name = next(label.removesuffix(ending) for ending in BESIDE if label.endswith(ending))
            known = rival.rpartition(" (")[2].rstrip(")")
            title = name if known in ("native", "flink") else f"{name} ({known})"
            found.setdefault(title, []).append(each)
    return {title: parts for title, parts in found.items() if len(parts) == len(BESIDE)}


def _cell(entry: Entry) -> str:
    """A ratio with what it was to reach.

    >>> _cell(Entry("spark-w3", Figure("rows/s", "x", (3.0, 5.0, 4.0), Bound("at least", 6.0)), "abc"))
    '4 x (≥ 6: **no**)'
    """
    figure = entry.figure
    text = f"{_number(figure.median)} {figure.unit}"
    if figure.bound is None:
        return text
    return f"{text} ({_goal(figure).removesuffix(figure.unit).rstrip()}: {_reached(figure)})"


def _goal(figure: Figure) -> str:
    if figure.bound is None:
        return ""
    sense = "≥" if figure.bound.sense == "at least" else "≤"
    return f"{sense} {_number(figure.bound.value)} {figure.unit}".rstrip()


def _reached(figure: Figure) -> str:
    return {True: "yes", False: "**no**", None: ""}[figure.is_reached]


def _conditions(results: Results) -> list[str]:
    """On which machine, and beside what, the figures were measured."""
    lines = []
    for text in sorted({json.dumps(result["machine"], sort_keys=True) for result in results.values()}):
        found = json.loads(text)
        versions = ", ".join(f"{name} {found[name]}" for name in ("python", "pyspark", "pyarrow", "polars", "duckdb"))
        lines += ["", f"Machine: {found['cpu']}, {found['cores']} cores, {found['memory_gigabytes']} GB; {versions}."]
    together: dict[str, list[str]] = {}
    for scenario, result in results.items():
        if result.get("beside"):
            together.setdefault(result["beside"], []).append(scenario)
    return lines + [
        text for beside, names in together.items() for text in ("", f"Measured beside {beside}: {', '.join(names)}.")
    ]


def renew_pages(results: Results) -> None:
    """Writes the tables into their pages."""
    put_in_page(table(results), PAGE)
    put_in_page(everything(results), EVERYTHING)


def put_in_page(text: str, page: Path) -> None:
    """Replaces what is between the markers of a page."""
    whole = page.read_text()
    before, rest = whole.split(BEGIN)
    _, after = rest.split(END)
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def spread(figure: Figure) -> str:
    """Median, with the least and the most when there were several runs.

    >>> spread(Figure("W3", "x", (3.0, 4.0, 3.5)))
    '3.5 x (3 to 4)'
    """
    text = f"{_number(figure.median)} {figure.unit}".rstrip()
    if len(figure.values) == 1:
        return text
    return f"{text} ({_number(min(figure.values))} to {_number(max(figure.values))})"


def figure_of(entry: dict[str, Any]) -> Figure:
    """The figure that `asdict` made an entry of."""
    bound = Bound(**entry["bound"]) if entry["bound"] else None
    return Figure(entry["what"], entry["unit"], tuple(entry["values"]), bound)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
