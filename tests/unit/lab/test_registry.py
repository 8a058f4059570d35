"""The lab's frame: what a run leaves behind, and what an unknown name gets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import pytest
from matplotlib.figure import Figure

from anabranch.errors import SpecError
from lab import __main__ as command
from lab.registry import Experiment, Outcome, Setting, Verdict, experiments, find, perform

Squares: TypeAlias = tuple[tuple[int, int], ...]


def _squares(setting: Setting) -> Squares:
    count = 3 if setting.quick else 5
    return tuple((number, number * number + setting.seed) for number in range(count))


def _present(rows: Squares) -> Outcome:

    def draw(figure: Figure) -> None:
        figure.subplots().plot([row[0] for row in rows], [row[1] for row in rows])

    verdict = Verdict("4", str(rows[2][1]), {"4": rows[2][1] == 4})
    return Outcome(("number", "square"), rows, draw, (verdict,), ("seeds are added",))


@dataclass(frozen=True)
class Workload:
    """A case that has nothing but a name."""

    name: str


SQUARES = Experiment("squares", "Squares", _squares, _present)


def test_a_run_leaves_table_picture_and_verdict(tmp_path: Path) -> None:
    perform(SQUARES, Setting(seed=2, quick=True), tmp_path)
    assert (tmp_path / "squares.csv").read_text().splitlines() == ["number,square", "0,2", "1,3", "2,6"]
    assert (tmp_path / "squares.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "squares.txt").read_text() == "Squares\npaper: 4 / here: 6 (MISSED: 4)\nnote: seeds are added\n"


def test_only_cases_that_there_are_can_be_asked_for() -> None:
    def some(setting: Setting) -> Squares:
        return tuple((int(name), int(name) ** 2) for name in setting.only)

    named = Experiment("squares", "Squares", some, _present, lambda: ("1", "2", "3"))
    assert named.run(Setting(only=("1", "3", "2"))).rows == ((1, 1), (3, 9), (2, 4))
    with pytest.raises(SpecError, match=r"no case '4'\nhint: one of 1, 2, 3"):
        named.run(Setting(only=("4",)))
    with pytest.raises(SpecError, match="leave --only out"):
        SQUARES.run(Setting(only=("1",)))


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(SpecError, match="no experiment 'nothing'"):
        find("nothing")


def test_an_experiment_without_a_variant_on_spark_says_which_have_one() -> None:
    assert find("balance-deciding", on_spark=True).name == "balance-deciding-spark"
    with pytest.raises(SpecError, match="'place-npc' has no variant on Spark"):
        find("place-npc", on_spark=True)
    with pytest.raises(SpecError, match="no experiment 'nothing'"):
        find("nothing", on_spark=True)


def test_names_are_sorted() -> None:
    assert list(experiments()) == sorted(experiments())


def test_a_verdict_names_what_was_missed_and_only_that() -> None:
    verdict = Verdict("more", "less", {"throughput": True, "rows": False, "bytes": False})
    assert verdict.missed == ("rows", "bytes")
    assert str(verdict) == "paper: more / here: less (MISSED: rows, bytes)"
    assert str(Verdict("more", "more", {"throughput": True})) == "paper: more / here: more"


def test_a_verdict_without_a_condition_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="'anything' has no condition"):
        Verdict("anything", "whatever", {})


def test_an_outcome_without_a_verdict_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="judges nothing"):
        Outcome((), (), lambda _: None, ())


def test_a_condition_that_is_not_a_number_is_missed() -> None:
    assert Verdict("more", "nothing to divide by", {"ratio": float("nan") >= 1.0}).missed == ("ratio",)


@pytest.mark.parametrize(
    ("seed", "options", "status"), [(0, [], 0), (0, ["--strict"], 0), (1, [], 0), (1, ["--strict"], 1)]
)
def test_a_miss_is_marked_and_only_strict_makes_it_a_failure(
    seed: int,
    options: list[str],
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "find", lambda *_, **__: SQUARES)
    arguments = ["squares", "--seed", str(seed), "--output", str(tmp_path / "out"), *options]
    assert command.main(arguments) == status
    printed = " ".join(capsys.readouterr().out.split())
    assert ("1 verdicts, 1 of them MISSED" in printed) == (seed == 1)
    assert ("(MISSED: 4)" in printed) == (seed == 1)


def test_cases_are_reported_as_they_begin_and_not_in_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    patterns = [Workload("swap"), Workload("skew")]
    several = replace(SQUARES, measure=lambda setting: tuple((2, 4) for _ in setting.each([*patterns, patterns[0]])))
    monkeypatch.setattr(command, "find", lambda *_, **__: several)
    assert command.main(["squares", "--output", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    reported = ["squares begins", "squares: swap, 1 of 3", "squares: skew, 2 of 3", "squares: swap, 3 of 3"]
    assert printed.err.splitlines() == reported
    assert "swap" not in printed.out


def test_a_wide_table_is_whole_in_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = tuple(f"column number {number}" for number in range(20))
    wide = replace(
        SQUARES,
        present=lambda _: Outcome(columns, (columns,), lambda _: None, (Verdict("more", "more", {"rows": True}),)),
    )
    monkeypatch.setattr(command, "find", lambda *_, **__: wide)
    assert command.main(["squares", "--output", str(tmp_path / "out")]) == 0
    assert sum(all(name in line for name in columns) for line in capsys.readouterr().out.splitlines()) == 2


def test_an_unknown_name_and_a_place_that_cannot_be_written_are_told_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["circles"]) == 2
    assert capsys.readouterr().err.startswith("error: no experiment 'circles'\n  hint: one of balance-")
    (tmp_path / "file").touch()
    assert command.main(["rate-selections", "--quick", "--output", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.startswith(f"error: '{tmp_path / 'file'}' cannot be written")
