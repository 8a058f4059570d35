"""The lab's frame: what a run leaves behind, and what an unknown name gets."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from anabranch.errors import SpecError
from anabranch.lab.registry import Experiment, Outcome, Setting, Verdict, experiments, find, misses, perform


def _squares(setting: Setting) -> Outcome:
    count = 3 if setting.quick else 5
    rows = tuple((number, number * number + setting.seed) for number in range(count))

    def draw(figure: Figure) -> None:
        figure.subplots().plot([row[0] for row in rows], [row[1] for row in rows])

    return Outcome(("number", "square"), rows, draw, (Verdict("4", str(rows[2][1])),))


def test_a_run_leaves_table_picture_and_verdict(tmp_path: Path) -> None:
    perform(Experiment("squares", "Squares", _squares), Setting(seed=2, quick=True), tmp_path)
    assert (tmp_path / "squares.csv").read_text().splitlines() == ["number,square", "0,2", "1,3", "2,6"]
    assert (tmp_path / "squares.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "squares.txt").read_text() == "Squares\npaper: 4 / here: 6\n"


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(SpecError, match="no experiment 'nothing'"):
        find("nothing")


def test_names_are_sorted() -> None:
    assert list(experiments()) == sorted(experiments())


def test_a_verdict_names_what_was_missed_and_only_that() -> None:
    assert misses({"throughput": True, "rows": False, "bytes": False}) == " (MISSED: rows, bytes)"
    assert misses({"throughput": True}) == ""
