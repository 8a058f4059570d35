"""The placement experiments run, and their seed decides their tables."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from lab.registry import Setting, experiments, find

NAMES = [
    "place-phased-vs-integrated",
    "place-cluster-size",
    "place-npc",
    "place-synthetic",
    "place-enterprise",
    "place-scaling",
    "place-time",
    "place-deployed",
    "place-changes",
]


def test_all_are_found_by_name() -> None:
    assert set(NAMES) <= set(experiments())


def test_the_same_seed_gives_the_same_table() -> None:
    experiment = find("place-npc")
    first, second = (experiment.run(Setting(seed=2, quick=True)) for _ in range(2))
    assert first.rows == second.rows
    assert first.rows != experiment.run(Setting(seed=3, quick=True)).rows


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_quick_run_gives_a_table_a_picture_and_verdicts(name: str) -> None:
    outcome = find(name).run(Setting(quick=True))
    assert all(len(row) == len(outcome.columns) for row in outcome.rows)
    assert outcome.verdicts
    figure = Figure()
    outcome.draw(figure)
    assert figure.get_axes()
