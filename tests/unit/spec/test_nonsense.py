"""Every entry of a spec refuses what is not its kind: no value that does not fit is read as some other setting.

`FULL` has every entry that a spec may have. Each is replaced by values of other kinds, and each group of entries gets
one more that is misspelt.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from anabranch.cost.units import ENGINE
from anabranch.errors import AnabranchError
from anabranch.settings.removed import REMOVED
from anabranch.spec import file as spec_file
from anabranch.spec.file import parse

FOLDER = Path("/specs")
FULL: dict[str, Any] = yaml.safe_load(
    """
    streams:
      s0: {format: parquet, path: s0, schema: "ts timestamp, k bigint", event_time: ts, watermark: 1 second,
           options: {mergeSchema: true}, idle_timeout: 1 minute, max_ahead: 1 minute, select: {ts: ts, k: k},
           where: k > 0, columns: "ts timestamp, k bigint"}
    tables:
      t: {format: parquet, path: t, schema: "k bigint", refresh: 1 minute, version: files, options: {mergeSchema: true}}
    query: SELECT a.k FROM s0 [RANGE 1 SECOND] AS a
    sink: {format: parquet, path: out, options: {compression: zstd}, partition_by: [k]}
    checkpoint: ckpt
    evolve: ask
    spark_checkpoint: spark
    trigger: 1 second
    slots: {least: 1, most: 2, fewest: true}
    name: q
    plan: auto
    limits: {cpu: 0.5, memory: 1 GB}
    objective: qualified
    hints: {keep: [a b], forbid: [mjoin], optimizer: local-rate}
    stats: {rates: {s0: 1}, rows: {t: 1}, filters: {a: 0.5}, selectivities: {a b: 0.1}, bytes: {s0: 8}, groups: {a: 2},
            functions: {f: 0.1}, predicates: {p: 0.1}}
    late_filters: [a]
    allow_unbounded: false
    adapt: {policy: data-driven, every: 3, eager: true, strategy: auto, freeze: true}
    switch: [{at_batch: 3, plan: (b a), strategy: auto}]
    balance: {mode: auto, capacities: [1, 2], show_keys: true, strategy: moving-state, rows: 3}
    moves: [{at_batch: 3, from: 0, to: 1, groups: 8, strategy: moving-state}, {at_batch: 6, slots: 1},
            {at_batch: 7, split: 7, over: 2, key: k}]
    late: {format: parquet, path: late}
    functions: {f: {python: "math:hypot", returns: double, takes: [double], kind: scalar, nulls: skip, version: 1}}
    execution: un-synchronised
    evolve: ask
    overload: keep
    idle_timeout: 1 minute
    spark: {master: local, conf: {spark.ui.enabled: false}}
    """
)
FULL["stats"]["costs"] = ENGINE.by_name()
OTHERS: tuple[Any, ...] = (False, True, 0, -1, 1.5, "", " ", "nonsense", [], [[]], {}, {"nonsense": 1})
"""Values of which each entry takes few."""
FREE = (
    *("streams", "tables", "functions", "options", "conf", "select", "rates", "rows", "filters", "selectivities"),
    *("bytes", "groups", "costs", "predicates"),
)
"""Groups whose names are the user's own."""
ALSO_TAKEN: Mapping[str, tuple[object, ...]] = {
    "adapt": (False, True, {}),
    "balance": (False, {}),
    "balance.mode": (False,),
    "slots": (),
}
"""What groups of entries, and words, may be instead."""


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every value below another, with the path that leads to it."""
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in below:
        yield (*path, key), each
        yield from places(each, (*path, key))


def written(path: tuple[Any, ...], value: object) -> str:
    document = copy.deepcopy(FULL)
    place: Any = document
    for each in path[:-1]:
        place = place[each]
    place[path[-1]] = value
    text: str = yaml.safe_dump(document)
    return text


def is_taken(text: str) -> bool:
    try:
        parse(text, folder=FOLDER)
    except AnabranchError as error:
        assert error.hint, f"{error} does not say what to write"  # noqa: PT017
        return False
    return True


def test_the_spec_has_every_entry() -> None:
    known = f"{spec_file._OF_A_RUN} {spec_file._OF_A_QUERY}".split()
    assert sorted(FULL) == sorted(known)
    parse(yaml.safe_dump(FULL), folder=FOLDER)


GROUPS = [(path, value) for path, value in places(FULL) if isinstance(value, dict)]
FLAGS = [path for path, value in places(FULL) if isinstance(value, bool) and not {"options", "conf"} & set(path)]
NUMBERS = [path for path, value in places(FULL) if isinstance(value, int | float) and not isinstance(value, bool)]
LISTS = [path for path, value in places(FULL) if isinstance(value, list)]


@pytest.mark.parametrize("path", [path for path, _ in GROUPS], ids=lambda path: ".".join(map(str, path)))
def test_a_group_of_entries_is_refused_as_anything_else(path: tuple[Any, ...]) -> None:
    taken = [value for value in OTHERS if not isinstance(value, dict) and is_taken(written(path, value))]
    expected = [value for value in ALSO_TAKEN.get(".".join(map(str, path)), ()) if not isinstance(value, dict)]
    assert taken == expected


@pytest.mark.parametrize("path", FLAGS, ids=lambda path: ".".join(map(str, path)))
def test_flags_accept_only_true_and_false(path: tuple[Any, ...]) -> None:
    assert [value for value in OTHERS if not isinstance(value, bool) and is_taken(written(path, value))] == []


@pytest.mark.parametrize("path", NUMBERS, ids=lambda path: ".".join(map(str, path)))
def test_a_number_is_not_true_or_false_or_a_word(path: tuple[Any, ...]) -> None:
    if path[-1] in ("split", "version"):
        pytest.skip("any value may be split; a version is a text")
    values: list[Any] = [False, True, "", "nonsense", {}, {"nonsense": 1}, [[]]]
    for value in values:
        assert not is_taken(written(path, value)), value


@pytest.mark.parametrize("path", LISTS, ids=lambda path: ".".join(map(str, path)))
def test_a_list_is_not_a_number_or_a_group(path: tuple[Any, ...]) -> None:
    values: list[Any] = [False, True, 0, 1.5, "", {}, {"nonsense": 1}, [[]], [True], [{}]]
    for value in values:
        assert not is_taken(written(path, value)), value


@pytest.mark.parametrize("value", [None, 1], ids=["without a value", "with one"])
@pytest.mark.parametrize("path", [(), *(path for path, _ in GROUPS)], ids=lambda path: ".".join(map(str, path)))
def test_a_misspelt_entry_is_refused(path: tuple[Any, ...], value: object) -> None:
    if path and path[-1] in FREE and value is not None:
        pytest.skip("the names are the user's own")
    with pytest.raises(AnabranchError) as caught:
        parse(written((*path, "nonsense"), value), folder=FOLDER)
    assert ".".join((*map(str, path), "nonsense")) in caught.value.message


def test_a_misspelt_entry_without_a_value_gets_the_nearest_name() -> None:
    with pytest.raises(AnabranchError, match=r"unknown entry 'streams\.s0\.watermrk'") as caught:
        parse(written(("streams", "s0", "watermrk"), None), folder=FOLDER)
    assert caught.value.hint == "did you mean 'watermark'?"


@pytest.mark.parametrize("name", REMOVED)
def test_a_removed_entry_is_refused_by_name(name: str) -> None:
    with pytest.raises(AnabranchError) as caught:
        parse(written(tuple(name.split(".")), 1), folder=FOLDER)
    assert caught.value.message == f"entry '{name}' is no longer a setting"
    assert caught.value.hint == REMOVED[name]
