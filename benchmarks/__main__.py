"""`python -m benchmarks [names…] [--quick] [--runs 3] [--minutes 2] [--json out.json] [--list]`

Without names, every scenario that needs nothing more than a clone. A scenario that fails is reported and the others
still run; the exit code is then 1. A full run is kept under benchmarks/results, scenario by scenario, so that one that
is stopped has lost only the scenario under way; it renews the tables of docs/benchmarks.md and docs/measurements.md. A
quick one prints only.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import report
from benchmarks.bench import FULL, QUICK, Bench
from benchmarks.figures import Figure
from benchmarks.job import FailedRun, WrongAnswer
from benchmarks.scenarios import SCENARIOS


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    if options.list:
        for scenario in SCENARIOS:
            print(f"{scenario.name:18}{scenario.purpose}")
        return 0
    sizes = QUICK if options.quick else FULL
    if options.minutes:
        sizes = replace(sizes, live_seconds=60 * options.minutes)
    bench = Bench(sizes, 1 if options.quick else options.runs, options.quick)
    measured: dict[str, list[Figure]] = {}
    failed: dict[str, str] = {}
    chosen = [each for each in SCENARIOS if (each.name in options.names if options.names else not each.only_named)]
    begun, started = datetime.now(UTC), time.perf_counter()
    for number, scenario in enumerate(chosen, 1):
        place = f"[{number} of {len(chosen)}, {(time.perf_counter() - started) / 60:.0f} min]"
        print(f"{place} {scenario.name}: {scenario.purpose}", file=sys.stderr, flush=True)
        try:
            measured[scenario.name] = scenario.measure(bench)
        except (FailedRun, WrongAnswer, ImportError) as error:
            failed[scenario.name] = str(error)
            print(f"  failed: {error}", file=sys.stderr)
        found = report.document(bench, begun, measured, failed, options.beside)
        if measured and not options.quick:
            report.keep(found)
            report.renew_pages(report.newest())
    print(report.everything(dict.fromkeys(measured, found)))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if failed else 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure Anabranch side by side.")
    parser.add_argument("names", nargs="*", help="scenarios to run; all when none is named")
    parser.add_argument("--quick", action="store_true", help="small sizes, one run: does everything work?")
    parser.add_argument("--runs", type=int, default=3, help="runs of each side (default: 3)")
    parser.add_argument("--minutes", type=float, help="of each live feed that is measured (default: 2)")
    parser.add_argument("--beside", help="what else runs on the machine, to be told with the figures")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--list", action="store_true", help="list the scenarios and stop")
    options = parser.parse_args(arguments)
    known = {scenario.name for scenario in SCENARIOS}
    unknown = [name for name in options.names if name not in known]
    if unknown:
        parser.error(f"unknown scenario '{unknown[0]}'; known are {', '.join(sorted(known))}")
    if options.runs < 1:
        parser.error("--runs must be at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
