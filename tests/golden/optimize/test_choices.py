"""Golden files of choosing: a join graph with statistics and limits in, the explanation out.

A file is a list of cases. A case is a line `=== name`, the setting as YAML, and the explanation after `---`; the
explanations are what is compared, and what `pytest tests/golden --regold` rewrites.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from anabranch.optimize import Budget, Hints, Objective, choose
from anabranch.optimize.explain import explanation
from anabranch.optimize.problem import Problem
from anabranch.plan.join_graph import JoinGraph
from anabranch.stats.view import FixedStatistics
from tests.unit.optimize.graphs import key, relation

HERE = Path(__file__).parent
CASE = re.compile(r"^=== (.+)\n", re.MULTILINE)


def explained(text: str) -> str:
    setting = yaml.safe_load(text)
    relations = tuple(relation(name, ("x", "y"), seconds) for name, seconds in setting["windows"].items())
    keys = tuple(
        key(f"k{i}", *(tuple(member.split(".")) for member in equality.split(" = ")))
        for i, equality in enumerate(setting["equalities"])
    )
    graph = JoinGraph(relations, keys)
    statistics = FixedStatistics.from_mapping(setting.get("stats", {}))
    statistics.check_names(graph)
    hints = setting.get("hints", {})
    choice = choose(
        Problem(
            graph,
            statistics,
            Budget(**setting.get("limits", {})),
            Objective.parse(setting.get("objective", "qualified")),
            Hints.parse(graph, force=hints.get("force"), keep=hints.get("keep", ()), forbid=hints.get("forbid", ())),
        )
    )
    return explanation(choice)


@pytest.mark.parametrize("path", sorted(file.name for file in HERE.glob("*.spec")))
def test_golden(path: str, regold: bool) -> None:
    file = HERE / path
    _, *parts = CASE.split(file.read_text())
    answered = ""
    for name, body in zip(parts[::2], parts[1::2], strict=True):
        setting = body.split("\n---", 1)[0].strip()
        answered += f"=== {name}\n{setting}\n---\n{explained(setting)}\n\n"
    answered = answered.rstrip("\n") + "\n"
    if regold:
        file.write_text(answered)
    assert answered == file.read_text(), f"{path} differs; look at it, then run pytest tests/golden --regold"
