"""The examples that the docs send a new user to: they run as they are, and their answers are right."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("drivers of their own")]
SHOW = "def shown(value):\n    if value is not None:\n        print(getattr(value, '_repr_html_', value.__repr__)())\n"


def run(folder: Path, *words: str) -> str:
    source = str(EXAMPLES.parent / "src")
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([source, str(EXAMPLES)])},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_tutorial_adapts_and_has_the_rows_of_sparks_batch_join(tmp_path: Path) -> None:
    said = run(tmp_path, str(EXAMPLES / "tutorial.py"))
    assert "->" in said, "the plan did not change"
    last = said.strip().splitlines()[-1]
    joined, folder = (int(word.strip(",").replace(",", "")) for word in last.split() if word[0].isdigit())
    assert joined == folder > 0, last


def test_the_notebook_runs_cell_by_cell(tmp_path: Path) -> None:
    """As a notebook would: each cell in turn, and the value of its last expression is shown."""
    cells = json.loads((EXAMPLES / "tutorial.ipynb").read_text())["cells"]
    program = [SHOW]
    for cell in cells:
        if cell["cell_type"] == "code":
            tree = ast.parse("".join(cell["source"]))
            if isinstance(last := tree.body[-1], ast.Expr):
                tree.body[-1] = ast.Expr(ast.Call(ast.Name("shown", ast.Load()), [last.value], []))
            program.append(ast.unparse(ast.fix_missing_locations(tree)))
    (tmp_path / "notebook.py").write_text("\n".join(program))
    said = run(tmp_path, "notebook.py")
    assert said.count("<table") == 2, "the handle shows itself as a table, twice"
    assert "migration began" in said
    assert int(said.strip().splitlines()[-1]) > 0


def test_the_example_of_three_streams_runs_by_spark_submit(tmp_path: Path) -> None:
    import pyspark

    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    done = subprocess.run(
        [str(submit), "--master", "local[2]", str(EXAMPLES / "three_streams.py")],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(EXAMPLES.parent / "src"),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "|order_id|customer|" in done.stdout
