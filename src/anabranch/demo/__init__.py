"""The demo: two acts on local Spark, each with its streams, its query and a check against the batch answer.

In the first the streams drift, and the query changes its plan while it runs (`drift`). In the second they are skewed,
and the same rows are joined by the best single plan and by a mesh, in turn (`skew`). Data come from a seed, and answers
depend on the data alone, so every run of one seed ends with the same rows.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from anabranch.demo import drift, skew
from anabranch.host.spark.session import local_session

__all__ = ["run_demo"]


def run_demo(folder: Path, *, seconds: int = 35, seed: int = 1, console: Console | None = None) -> bool:
    """Runs the demo inside a folder; true when every result equals its batch answer."""
    console = console or Console()
    console.print(f"[bold]anabranch demo[/bold], first act: three live streams for {seconds} s, joined as they flow\n")
    first = drift.prepared_folder(folder)
    console.print(first.only.query.strip(), style="cyan", highlight=False)
    console.print("\nstarting Spark …", style="dim")
    spark = local_session(2, **{"spark.driver.memory": "1g"})
    try:
        has_passed = drift.perform(folder, first, spark, console, seconds, seed)
        return skew.perform(folder, spark, console, seed) and has_passed
    finally:
        spark.stop()
