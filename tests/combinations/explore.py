"""`python -m tests.combinations.explore`: runs every pair and prints what came of it."""

from __future__ import annotations
import sys, itertools, json, traceback, time
from collections import Counter, defaultdict
from hypothesis import HealthCheck, Phase, given, settings, seed
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from anabranch.engine.tracks import spread
from tests.combinations import table, play


def outcomes(one, other, examples, number):
    found = Counter()
    details = {}

    @seed(number)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def go(data):
        try:
            played = play.run_pair(data, one, other)
            found["exact" if played.results else "exact, empty"] += 1
        except play.Refused as e:
            k = f"refused {e}"[:160]
            found[k] += 1
        except play.Wrong as e:
            found["WRONG"] += 1
            details.setdefault("WRONG", str(e))
        except Exception as e:
            k = f"CRASH {type(e).__name__}: {e}"[:160].split("\n")[0]
            found[k] += 1
            details.setdefault(k, traceback.format_exc())

    go()
    return found, details


def main():
    pattern = sys.argv[2] if len(sys.argv) > 2 else ""
    examples = int(sys.argv[1])
    part = sys.argv[3] if len(sys.argv) > 3 else "0/1"
    setattr(providers, "_get_local_constants", lambda: Constants())
    spread.allowance = lambda brought: 3
    spread.SLICE = 2
    names = list(table.ENTRIES)
    pairs = [(a, a) for a in names] + list(itertools.combinations(names, 2))
    pairs = [p for p in pairs if all(w in p for w in pattern.split("+") if w)]
    mine, of = map(int, part.split("/"))
    first = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    for n, (a, b) in enumerate(pairs):
        if n < first:
            continue
        if n % of != mine:
            continue
        if table.is_one_choice(frozenset({a, b})):
            continue
        t = time.time()
        found, details = outcomes(a, b, examples, n)
        print(json.dumps({"pair": [a, b], "found": dict(found), "s": round(time.time() - t, 1)}), flush=True)
        for k, d in details.items():
            print("   ", k, d.replace("\n", "\n      ")[-3000:], flush=True)


main()
