"""The regret suite: workloads are values, static plans are all there, and nothing that could win is given up."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from anabranch.errors import HostError
from anabranch.plan.mesh import Mesh
from anabranch.plan.text import parse
from lab.registry import Setting, Verdict
from lab.regret import COLUMNS, PACKAGES, measure, present, suite
from lab.regret_runs import (
    Found,
    Run,
    Runner,
    every_shape,
    fingerprint,
    measured,
    race,
    sample_of,
    static_plans,
)
from lab.regret_suite import SYNTHETIC
from lab.regret_workloads import BATCH, Size, Workload

SMALL = Size(batches=14, rows=400)


def named(name: str) -> Workload:
    return next(each for each in SYNTHETIC if each.name == name)


def test_there_are_at_least_sixteen_workloads_of_three_to_eight_streams() -> None:
    sizes = [len(each.query.graph.names) for each in SYNTHETIC]
    assert len({each.name for each in SYNTHETIC}) == len(SYNTHETIC) >= 16
    assert (min(sizes), max(sizes)) == (3, 8)


@pytest.mark.parametrize("rows", [100, 400])
def test_a_short_run_has_the_fan_outs_of_a_long_one(rows: int) -> None:
    batch = next(named("swap").batches(1, Size(1, rows)))
    keys, others = batch["b"]["r"].to_numpy(), batch["c"]["l"].to_numpy()
    # A batch is a tenth of a window.
    assert 10 * (keys[:, None] == others).sum() / rows == pytest.approx(4.0, rel=0.5)


@pytest.mark.parametrize("workload", SYNTHETIC, ids=lambda each: each.name)
def test_the_rows_follow_from_the_seed(workload: Workload) -> None:
    one, same, other = (list(workload.batches(seed, Size(3, 20))) for seed in (1, 1, 2))
    assert one == same != other
    assert {*one[0]} == {*workload.streams}


@pytest.mark.parametrize(("relations", "count"), [(2, 1), (3, 4), (4, 26), (5, 236)])
def test_every_shape_is_there_once(relations: int, count: int) -> None:
    shapes = [tuple(sorted(shape.items())) for shape in every_shape((1 << relations) - 1)]
    assert len(shapes) == len({*shapes}) == count


def test_the_race_keeps_the_plans_of_least_work() -> None:
    workload = named("swap")
    query, batches = workload.query, list(workload.batches(1, SMALL))
    plans = [parse(text) for text in ("(a b c)", "((a b) c)", "(a (b c))", "((a c) b)")]

    def work(plan: object) -> float:
        runner = Runner(workload, query, plan)  # type: ignore[arg-type]
        for batch in batches:
            runner.step(batch)
        return runner.work

    assert race(workload, query, plans, batches) == sorted(plans, key=work)[:2]


def test_a_workload_is_measured(counted_costs: None) -> None:
    found = measured(named("one drift"), 1, SMALL)
    assert found.is_exact
    assert found.auto.results
    assert found.fixed_plans[0].work <= found.fixed_plans[1].work
    assert found.tried >= len(list(every_shape(7)))
    # Without any change, the adapting run did just the work of the first plan.
    assert found.adapt.changes or found.adapt.work == pytest.approx(found.auto.work)


def test_a_fingerprint_is_that_of_a_multiset() -> None:
    rows = pa.table({"x": [1, 2, 2], "y": ["a", "b", "b"]})
    assert fingerprint(rows) == fingerprint(rows.take([2, 0, 1]))
    assert len({fingerprint(each) for each in (rows, rows.slice(0, 2), rows.take([0, 0, 1]), rows.slice(0, 0))}) == 4


@pytest.mark.parametrize("name", PACKAGES)
def test_real_rows_meet(name: str) -> None:
    known = {each.name: each for each in suite()}
    if name not in known:
        with pytest.raises(HostError, match=rf"'{name}' are not installed\nhint: pip install"):
            measure(Setting(only=(name,)))
    else:
        workload = known[name]
        batches = list(workload.batches(1, Size(20)))
        counts = {stream: [batch[stream].num_rows for batch in batches] for stream in batches[0]}
        # Few airplanes climb or descend within two minutes, and often none.
        assert all(map(any, counts.values())), counts
        assert max(sum(count > 0 for count in several) for several in counts.values()) == len(batches)
        host = Runner(workload, workload.query, parse(f"({' '.join(workload.query.graph.names)})"))
        for batch in batches:
            host.step(batch)
        assert host.results


def test_a_miss_is_marked_in_its_row() -> None:
    run = Run("(a b c)", 1.0, 1.0, 1)
    found = Found("x", "changing", 3, 4, (run,), replace(run, work=1.5), replace(run, work=1.2), run, run)
    row = dict(zip(COLUMNS, present([found]).rows[0], strict=True))
    assert row["missed"] == "work, gain"
    assert (row["regret"], row["gain"]) == pytest.approx((1.2, 1.25))


def test_a_run_of_one_workload_is_not_judged_by_what_others_show() -> None:
    run = Run("(a b c)", 1.0, 1.0, 1)
    still, changing = (Found(kind, kind, 3, 4, (run,), run, run, run, run) for kind in ("steady", "changing"))
    judged = [{verdict.paper for verdict in present([each]).verdicts} for each in (still, changing)]
    assert [any("real data" in paper for paper in papers) for papers in judged] == [False, False]
    assert [any("times less" in paper for paper in papers) for papers in judged] == [False, True]
    assert [any("deciding" in paper for paper in papers) for papers in judged] == [True, False]


def test_a_run_of_all_workloads_without_real_data_is_missed() -> None:
    run = Run("(a b c)", 1.0, 1.0, 1)
    several = [Found(each.name, each.kind, 3, 4, (run,), run, run, run, run) for each in SYNTHETIC]
    assert ("real data",) in [verdict.missed for verdict in present(several).verdicts]


def test_static_plans_have_the_orders_of_every_phase() -> None:
    workload = named("several drifts")
    query = workload.query
    batches = list(workload.batches(1, Size(24, 200)))
    one = static_plans(query, [sample_of(query, batches[:12], BATCH)], BATCH)
    both = static_plans(query, [sample_of(query, some, BATCH) for some in (batches[:12], batches[12:])], BATCH)
    # Meshes depend on measured seconds, so the same rows may give another one.
    first, all_of_them = ({str(plan) for plan in plans if not isinstance(plan, Mesh)} for plans in (one, both))
    assert first < all_of_them


def test_a_verdict_names_the_workloads_above_the_bar() -> None:
    run = Run("(a b c)", 1.0, 1.0, 1)
    slow = Found("slow", "steady", 3, 4, (run,), run, replace(run, work=1.4, cpu=1.4), run, run)
    verdicts: list[Verdict] = [each for each in present([slow]).verdicts if each.missed]
    assert [each.missed for each in verdicts[:2]] == [("1.05 on average", "1.15 at worst")] * 2
    assert "slow 1.40" in verdicts[0].here
