"""Golden files of `plan: auto` from a spec: what explain prints, and what bad input gets.

A file is a list of cases. A case is a line `=== name`, entries that are added to the spec below, and after `---` what
the command prints; `pytest tests/golden --regold` rewrites that part.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from anabranch.cli import main as cli

HERE = Path(__file__).parent
CASE = re.compile(r"^=== (.+)\n", re.MULTILINE)
COLUMNS = "ts timestamp, id bigint, owner bigint, amount bigint"
SPEC = {
    "streams": {
        name: {"format": "parquet", "path": name, "schema": COLUMNS, "event_time": "ts"}
        for name in ("orders", "payments", "shipments", "people")
    },
    "query": "SELECT o.amount AS amount, p.amount AS paid FROM orders [RANGE 60 SECONDS] AS o, "
    "payments [RANGE 40 SECONDS] AS p, shipments [RANGE 40 SECONDS] AS s "
    "WHERE o.id = p.id AND p.id = s.id AND p.amount >= o.amount AND o.amount > 20",
    "sink": {"format": "parquet", "path": "out"},
    "checkpoint": "checkpoint",
    "slots": 2,
    "trigger": "1 second",
}


@pytest.mark.parametrize("path", sorted(file.name for file in HERE.glob("*.spec")))
def test_golden(path: str, regold: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    golden, file = HERE / path, tmp_path / "spec.yaml"
    _, *parts = CASE.split(golden.read_text())
    answered = ""
    for name, body in zip(parts[::2], parts[1::2], strict=True):
        entries = body.split("\n---", 1)[0].strip()
        file.write_text(yaml.safe_dump({**SPEC, **(yaml.safe_load(entries) or {})}))
        status = cli.main(["explain", str(file)])
        shown = capsys.readouterr()
        answered += f"=== {name}\n{entries}\n---\n{shown.out}{shown.err}exit {status}\n\n"
    answered = answered.rstrip("\n") + "\n"
    if regold:
        golden.write_text(answered)
    assert answered == golden.read_text(), f"{path} differs; look at it, then run pytest tests/golden --regold"
