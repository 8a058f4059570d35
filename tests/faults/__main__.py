"""`python -m tests.faults`: drawn schedules of faults against the batch answer (`make faults`)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.faults.campaign import Campaign, cores, play, run


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__, allow_abbrev=False)
    parser.add_argument("--schedules", type=int, default=10_000, help="how many to run in all (10000)")
    parser.add_argument("--seed", type=int, default=0, help="of the campaign (0)")
    parser.add_argument("--workers", type=int, default=cores(), help="processes (one for each core)")
    parser.add_argument("--journal", type=Path, default=Path("build/faults.jsonl"), help="taken up again if it exists")
    parser.add_argument("--hand", type=int, help="plays this hand again, alone and loudly")
    given = parser.parse_args()
    if given.hand is not None:
        outcome = play(given.seed, given.hand, loudly=True)
        _say(outcome.failure or f"hand {given.hand} passed, {outcome.schedules} schedules")
        return int(outcome.failure is not None)
    campaign = Campaign(given.schedules, given.seed, given.workers, given.journal)
    try:
        failed = run(campaign, _say)
    except KeyboardInterrupt:
        _say(f"stopped; the same command goes on from {given.journal}")
        return 130
    _say(f"{failed} hands with wrong rows" if failed else "no wrong row")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
