"""The CPU and memory of a slot, from the settings of a session."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import pytest

from anabranch.spark.slot_limits import SlotLimits, slot_limits

MIB = 1 << 20


def limits(master: str, conf: Mapping[str, str] = MappingProxyType({}), parallelism: int = 4) -> SlotLimits:
    settings = {f"spark.{name}": value for name, value in conf.items()}
    context = SimpleNamespace(master=master, defaultParallelism=parallelism, getConf=lambda: settings)
    return slot_limits(cast("Any", SimpleNamespace(sparkContext=context)))


@pytest.mark.parametrize(
    ("conf", "memory"),
    [
        ({}, 384),
        ({"executor.memory": "20g"}, 2048),
        ({"executor.memory": "20g", "executor.memoryOverheadFactor": "0.4"}, 8192),
        ({"executor.memoryOverhead": "3g", "executor.pyspark.memory": "1024"}, 4096),
        ({"executor.memoryOverhead": "4096m", "executor.cores": "4"}, 1024),
    ],
)
def test_an_executor_shares_its_memory_outside_the_heap_among_its_tasks(conf: dict[str, str], memory: int) -> None:
    assert limits("spark://host:7077", conf) == SlotLimits(1.0, memory * MIB)


def test_a_slot_has_the_cores_of_a_task() -> None:
    found = limits("yarn", {"executor.cores": "4", "task.cpus": "2", "executor.memoryOverhead": "1g"})
    assert found == SlotLimits(2.0, 512 * MIB)


def test_one_machine_shares_its_memory_less_the_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {"SC_PHYS_PAGES": 4096, "SC_PAGE_SIZE": MIB}
    monkeypatch.setattr("os.sysconf", pages.__getitem__)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert limits("local[4]", {"driver.memory": "2g"}) == SlotLimits(0.5, 512 * MIB)
    assert limits("local[1]", {}, 1) == SlotLimits(1.0, 3072 * MIB)
    assert limits("local[1]", {"driver.memory": "8g"}, 1).memory == 0.0
