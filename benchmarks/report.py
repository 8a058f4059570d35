"""Results as JSON, and as the table in docs/benchmarks.md between its two markers.

A result file holds one invocation: the machine, the commit, every figure with all its values, and every Spark run. The
table is made from the newest full result of each scenario, so scenarios may be measured one at a time.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench
from benchmarks.figures import Bound, Figure
from benchmarks.job import ROOT

RESULTS = Path(__file__).parent / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def document(bench: Bench, measured: dict[str, list[Figure]], failed: dict[str, str]) -> dict[str, Any]:
    """One invocation as plain data."""
    return {
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": machine(),
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
    """Writes a result file named by when it was measured."""
    RESULTS.mkdir(exist_ok=True)
    stamp = found["measured"].replace(":", "").replace("-", "")[:15]
    path = RESULTS / f"{stamp}.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    return path


def newest(results: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """By scenario, the newest full result that has it."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(results.glob("*.json")):
        result = json.loads(path.read_text())
        if not result["quick"]:
            found.update(dict.fromkeys(result["scenarios"], result))
    return found


def table(results: dict[str, dict[str, Any]]) -> str:
    """The figures as Markdown: those that have something to reach first, then those for comparison."""
    bounded: list[tuple[str, Figure, str]] = []
    others: list[tuple[str, Figure, str]] = []
    for scenario, result in results.items():
        for entry in result["scenarios"][scenario]:
            figure = figure_of(entry)
            (others if figure.bound is None else bounded).append((scenario, figure, result["commit"]))
    lines = [
        "| scenario | what | to reach | measured (least to most) | reached | commit |",
        "|---|---|---|---|---|---|",
    ]
    for scenario, figure, commit in bounded:
        assert figure.bound is not None
        sense = "≥" if figure.bound.sense == "at least" else "≤"
        goal = f"{sense} {_number(figure.bound.value)} {figure.unit}".rstrip()
        reached = "yes" if figure.is_reached else "**no**"
        lines.append(f"| {scenario} | {figure.what} | {goal} | {spread(figure)} | {reached} | {commit} |")
    lines += ["", "For comparison:", "", "| scenario | what | measured (least to most) |", "|---|---|---|"]
    lines += [f"| {scenario} | {figure.what} | {spread(figure)} |" for scenario, figure, _ in others]
    machines = {json.dumps(result["machine"], sort_keys=True) for result in results.values()}
    for text in sorted(machines):
        found = json.loads(text)
        versions = ", ".join(f"{name} {found[name]}" for name in ("python", "pyspark", "pyarrow", "polars", "duckdb"))
        lines += ["", f"Machine: {found['cpu']}, {found['cores']} cores, {found['memory_gigabytes']} GB; {versions}."]
    return "\n".join(lines)


def put_in_page(text: str, page: Path = PAGE) -> None:
    """Replaces what is between the markers of the page."""
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
