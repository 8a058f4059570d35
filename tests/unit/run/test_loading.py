"""What a worker loads: its first batch waits for it."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = ["sklearn", "pandas", "matplotlib", "networkx", "rich"]
DRIVERS = ["adapt", "choosing", "cost", "cql", "mesh", "migrate.machine", "optimize"]
"""Rooms that only a driver needs."""


def test_a_worker_loads_no_library_that_it_may_never_need() -> None:
    # The search for meshes once brought scikit-learn along, which made the first batch two seconds later.
    names = [*HEAVY, *(f"anabranch.{room}" for room in DRIVERS)]
    code = f"import json, sys, anabranch.spark.worker; print(json.dumps([m for m in {names} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_a_driver_loads_the_libraries_of_a_sink_only_if_it_has_one() -> None:
    code = "import sys, anabranch.spec.launch; sys.exit('pyiceberg' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
