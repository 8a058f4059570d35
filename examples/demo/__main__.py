"""`python -m examples.demo`: two acts on local Spark, each with its streams, its query and a check by the batch answer.

In the first the streams drift, and the query changes its plan while it runs (`drift`). In the second they are skewed,
and the same rows are joined by the best single plan and by a mesh, in turn (`skew`). Data come from a seed, and answers
depend on the data alone, so every run of one seed ends with the same rows.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from anabranch.errors import AnabranchError
from anabranch.settings.commands import USER_ERROR, error_text, writing
from anabranch.spark.session import local_session
from examples.demo import drift, skew


def main(words: list[str]) -> int:
    """Runs the demo; the exit status is 1 if a result differs from the batch answer."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo",
        description="Run the demo: drifting and skewed streams, checked against the batch answer.",
    )
    parser.add_argument("--output", type=Path, default=Path("demo-output"), metavar="DIR", help="the output folder")
    parser.add_argument(
        "--seconds", type=int, default=35, metavar="N", help="how long the first streams flow (default: 35)"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="the seed of the generated data (default: 1)")
    arguments = parser.parse_args(words)
    try:
        with writing(arguments.output):
            arguments.output.mkdir(exist_ok=True)
        return 0 if run_demo(arguments.output, seconds=arguments.seconds, seed=arguments.seed) else 1
    except AnabranchError as error:
        print(error_text(error), file=sys.stderr)
        return USER_ERROR


def run_demo(folder: Path, *, seconds: int = 35, seed: int = 1, console: Console | None = None) -> bool:
    """Runs the demo inside a folder; true when every result equals its batch answer."""
    console = console or Console()
    console.print(f"[bold]the demo[/bold], first act: three live streams for {seconds} s, joined as they flow\n")
    first = drift.prepared_folder(folder)
    console.print(first.only.query.strip(), style="cyan", highlight=False)
    console.print("\nstarting Spark …", style="dim")
    spark = local_session(2, **{"spark.driver.memory": "1g"})
    try:
        has_passed = drift.perform(folder, first, spark, console, seconds, seed)
        return skew.perform(folder, spark, console, seed) and has_passed
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
