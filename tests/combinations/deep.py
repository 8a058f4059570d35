import sys, json, traceback, time, random
from collections import Counter
from hypothesis import HealthCheck, Phase, given, settings, seed, note
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from anabranch.engine.tracks import spread
from tests.combinations import table, play

setattr(providers, "_get_local_constants", lambda: Constants())
spread.allowance = lambda brought: 3
spread.SLICE = 2
start, count = int(sys.argv[1]), int(sys.argv[2])
only = sys.argv[3].split("+") if len(sys.argv) > 3 else []
found = Counter()
t0 = time.time()
for n in range(start, start + count):
    r = random.Random(n)
    while True:
        fs = r.sample(sorted(table.FEATURES), r.choice([1, 2, 2, 3, 3, 4, 5]))
        es = [r.choice(sorted(table.EVENTS)) for _ in range(r.choice([0, 1, 2, 2, 3, 3, 4, 5]))]
        fs += [o for o in only if o in table.FEATURES]
        es += [o for o in only if o in table.EVENTS]
        names = table.closed([*fs, *es])
        if not table.is_one_choice(names):
            break

    @seed(n)
    @settings(
        max_examples=2, database=None, deadline=None, phases=(Phase.generate,), suppress_health_check=list(HealthCheck)
    )
    @given(data=st.data())
    def go(data):
        try:
            p = play.play(data, names & table.FEATURES.keys(), es)
            found["exact" if p.results else "empty"] += 1
        except play.Refused as e:
            found["refused " + str(e).split("'")[0][:60]] += 1
        except play.Wrong as e:
            found["WRONG"] += 1
            print(
                "WRONG", n, sorted(names & table.FEATURES.keys()), es, str(e)[:600].replace("\n", "\n    "), flush=True
            )
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as e:
            if "hypothesis" in type(e).__module__:
                raise
            found["CRASH"] += 1
            print("CRASH", n, sorted(names & table.FEATURES.keys()), es, traceback.format_exc()[-1500:], flush=True)

    go()
    if n % 200 == 199:
        print(n, round(time.time() - t0), found["exact"], found["empty"], found["WRONG"], found["CRASH"], flush=True)
for k, v in found.most_common():
    print(v, k)
