"""Runs a short set of the Spark tests on other versions of Python and PySpark: `make test-versions`.

Each pair, such as `3.13/4.1`, gets a virtual environment of its own below `.venv-versions`, with the package and what
the tests need. Limit: an interpreter `python3.13` must be on the path, or among those of pyenv.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAIRS = ("3.11/4.1", "3.11/4.2", "3.13/4.3")
"""The default: the oldest Spark, the one between, and the newest with the newest Python."""
NEEDED = ("duckdb", "hypothesis", "pytest", "pytest-xdist", "psutil")
"""What the short set imports, in the versions of `dev`."""
SHORT = (
    "tests/spark/test_session.py",
    "tests/spark/test_ports.py",
    "tests/spark/test_groups_of_joins.py",
    "tests/spark/test_more_sql_on_spark.py",
    "tests/spark/test_tables_on_spark.py",
    "tests/spark/test_internals.py",
)


def main(pairs: list[str]) -> int:
    failed = [pair for pair in pairs or PAIRS if not _passes(*pair.split("/"))]
    sys.stdout.write(f"failed: {', '.join(failed)}\n" if failed else "every pair of versions passes\n")
    return bool(failed)


def _passes(python: str, pyspark: str) -> bool:
    sys.stdout.write(f"== Python {python}, PySpark {pyspark}\n")
    sys.stdout.flush()
    environment = ROOT / ".venv-versions" / f"{python}-{pyspark}"
    interpreter = environment / "bin" / "python"
    if not (environment / ".ready").exists():
        subprocess.run([_interpreter(python), "-m", "venv", str(environment)], check=True)
        wanted = [*_pinned(), f"pyspark=={pyspark}.*"]
        install = [str(interpreter), "-m", "pip", "install", "-qq", "--editable", f"{ROOT}[spark]", *wanted]
        subprocess.run(install, check=True, cwd=ROOT)
        (environment / ".ready").touch()
    variables = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT / "src")}
    tests = os.environ.get("TESTS", "").split() or SHORT
    command = [str(interpreter), "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode == 0


def _interpreter(python: str) -> str:
    """Returns the path of an interpreter of that version."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = sorted(pyenv.glob(f"{python}.*/bin/python"))
    path = str(found[-1]) if found else shutil.which(f"python{python}")
    if path is None:
        raise SystemExit(f"error: Python {python} is not installed\nhint: install it, or leave the pair out")
    return path


def _pinned() -> list[str]:
    """Returns the needed packages in the versions that the project pins for development."""
    pins = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["dev"]
    return [pin for pin in pins if pin.split("==")[0].split("[")[0] in NEEDED]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
