"""What all tests share: Hypothesis profiles, and one Spark session for those that need a JVM.

Run by several processes (`-n 2 --dist loadgroup`, as `make test` does), all tests that need the Spark session are one
group and run in one process; tests that only start Spark of their own, to kill it, are groups for themselves.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark's workers start whatever `python3` PATH finds, which has not the packages of this environment.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

NO_CONSTANTS = Constants()

# The default profile draws the same examples every time, so that a red test is red for everyone. The other two draw new
# ones: `explore` three times as many, in about half an hour with every slow test, `nightly` as many as a night allows.
settings.register_profile(
    "default",
    max_examples=40,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
for name, examples in (("explore", 120), ("nightly", 1_000)):
    settings.register_profile(
        name,
        max_examples=examples,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "default")
settings.load_profile(PROFILE)
if PROFILE == "default":
    # Hypothesis also draws constants of the sources that happen to be loaded, so that other examples are drawn when a
    # test runs alone, in another process or after an unrelated edit. No setting switches that off.
    setattr(providers, "_get_local_constants", lambda: NO_CONSTANTS)  # noqa: B010


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests that use the Spark session, and keeps them in one process."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
        if item.get_closest_marker("spark") and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(autouse=True, scope="session")
def own_hot_folder() -> Iterator[None]:
    """Hot state of these tests alone, in memory if possible, and nothing of killed drivers stays behind."""
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with (
        pytest.MonkeyPatch.context() as patched,
        tempfile.TemporaryDirectory(prefix="anabranch-tests-", dir=shared) as folder,
    ):
        patched.setenv("ANABRANCH_HOT_FOLDER", folder)
        yield


@pytest.fixture(autouse=True, scope="session")
def no_calibration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Plans are chosen by the built-in costs, whatever was measured on the machine that runs the tests."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def counted_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators cost what they do, by count: for tests that judge the mesh which a search finds."""
    from tests.support.costs import TIMED, counted

    monkeypatch.setattr(TIMED, counted)


@pytest.fixture
def free_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches for meshes cost nothing: for tests whose streams are too short for a search to pay back."""
    monkeypatch.setattr("anabranch.adapt.advisors.routes.SEARCH_CPU", 0.0)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local Spark session with two cores, shared by the whole run."""
    from anabranch.spark.session import local_session

    session = local_session(
        2,
        **{
            "spark.app.name": "anabranch-tests",
            "spark.driver.memory": "1g",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            # A query that waits reports progress without a batch every ten seconds; on a busy machine that is now and
            # then the last progress that a test reads.
            "spark.sql.streaming.noDataProgressEventInterval": str(24 * 3600 * 1000),
        },
    )
    yield session
    session.stop()
