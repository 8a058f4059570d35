"""`python -m examples.demo`: two acts on local Spark, each with its streams, its query and a check by the batch answer.

In the first act the streams drift; the query that adapts is compared with the same query that keeps its first plan
(`drift`). In the second the streams are skewed, and the same rows are joined by the best single plan and by a mesh
(`skew`). Data come from a seed, and answers depend on the data alone, so every run of one seed has the same results.
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
from examples.demo.screen import served


def main(words: list[str]) -> int:
    """Runs the demo; the exit status is 1 if a result differs from the batch answer, or the plan did not change."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo",
        description="Run the demo: drifting and skewed streams, checked against the batch answer.",
    )
    parser.add_argument("--output", type=Path, default=Path("demo-output"), metavar="DIR", help="the output folder")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="the seed of the generated data (default: 1)")
    arguments = parser.parse_args(words)
    try:
        with writing(arguments.output):
            arguments.output.mkdir(exist_ok=True)
        return 0 if run_demo(arguments.output, seed=arguments.seed) else 1
    except AnabranchError as error:
        print(error_text(error), file=sys.stderr)
        return USER_ERROR


def run_demo(folder: Path, *, seed: int = 1, console: Console | None = None) -> bool:
    """Runs the demo inside a folder; true when the plan changed and every result equals its batch answer."""
    console = console or Console()
    console.print("[bold]the demo[/bold], first act: three streams drift while they are joined\n")
    first = drift.prepared_folder(folder, seed)
    console.print(first.only.query.strip(), style="cyan", highlight=False)
    console.print("\nstarting Spark …", style="dim")
    spark = local_session(2, **{"spark.driver.memory": "1g"})
    try:
        with served(console) as shown:
            has_passed = drift.perform(folder, first, spark, console, shown)
            return skew.perform(folder, spark, console, shown, seed) and has_passed
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
