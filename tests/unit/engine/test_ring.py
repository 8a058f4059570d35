"""The ring and its indexes against a plain list: whatever grows, shrinks, wraps or is reopened, the same rows."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from anabranch.engine.kernels import WAITING, Int64Array
from anabranch.engine.state import ring as ring_module
from anabranch.engine.state.arena import Arena, Array, MappedArena, ProcessArena
from anabranch.engine.state.ring import Index, Ring
from anabranch.errors import StorageFull

COLUMNS = {"value": ("<i8", 1), "wide": ("<i8", 2)}
INDEXES: tuple[Index, ...] = (("k",), ())
KEY, ALL = INDEXES


def numbers(*values: int) -> Int64Array:
    return np.array(values, dtype=np.int64)


def ring_of(arena: Arena, span: int | None = None) -> Ring:
    return Ring(arena, "state", COLUMNS, INDEXES, span=span)


def add(ring: Ring, codes: Int64Array, newest: Int64Array, deadline: Int64Array) -> int:
    """Appends and links rows, at least one, whose value is their code."""
    columns: dict[str, Array] = {"value": codes, "wide": np.stack([codes, -codes], axis=1)}
    first = ring.append(columns if ring.span is not None else {**columns, "deadline": deadline}, len(codes))
    ring.link(first, lambda index: codes if index else codes * 0, newest)
    return first


def found(
    ring: Ring, index: Index, code: int, newest: int, deadline: int, block: int = 4
) -> list[tuple[int, int, int]]:
    """Row, combined newest and combined deadline of all matches of one probing row."""
    several = ring.probe(index, numbers(code), numbers(newest), numbers(deadline), block)
    listed = [match for m in several for match in zip(m.rows, m.newest, m.deadline, strict=True)]
    return sorted((int(row), int(newer), int(sooner)) for row, newer, sooner in listed)


@dataclass
class Model:
    """All rows ever added as (code, newest, deadline), and the number of the first live one."""

    rows: list[tuple[int, int, int]] = field(default_factory=list)
    first: int = 0

    def matches(self, code: int | None, newest: int, deadline: int) -> list[tuple[int, int, int]]:
        return [
            (row, max(newest, newer), min(deadline, sooner))
            for row, (own, newer, sooner) in enumerate(self.rows)
            if row >= self.first and code in (None, own) and max(newest, newer) <= min(deadline, sooner)
        ]


class RingAgainstAList(RuleBasedStateMachine):
    """Two rings, one of them reopened now and then, do what a list does."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.arena = MappedArena(Path(self.folder.name))
        self.rings = [ring_of(ProcessArena(), span=100), ring_of(self.arena)]
        self.model = Model()
        self.clock = 0

    def teardown(self) -> None:
        self.folder.cleanup()

    @rule(count=st.sampled_from([1, 3, 50, 700, 3000]), codes=st.integers(1, 40), step=st.integers(0, 2))
    def grow(self, count: int, codes: int, step: int) -> None:
        code = np.arange(count, dtype=np.int64) * 7 % codes
        newest = self.clock + np.arange(count, dtype=np.int64) * step
        deadline = newest + 100
        starts = {add(ring, code, newest, deadline) for ring in self.rings}
        assert starts == {len(self.model.rows)}
        self.model.rows += list(zip(code.tolist(), newest.tolist(), deadline.tolist(), strict=True))
        self.clock += count * step

    @rule(part=st.floats(0, 1.2))
    def drop(self, part: float) -> None:
        live = self.model.rows[self.model.first :]
        if not live:
            return
        low = int(live[0][2] + part * (live[-1][2] - live[0][2])) + (part > 1)
        kept = next((i for i, row in enumerate(live) if row[2] >= low), len(live))
        assert {ring.drop(low) for ring in self.rings} == {kept}
        self.model.first += kept

    @rule()
    def reopen(self) -> None:
        layout = self.rings[1].layout()
        self.rings[1] = ring_of(self.arena)
        self.rings[1].reopen(layout)

    @rule(code=st.integers(0, 41), back=st.integers(-50, 150), block=st.sampled_from([1, 7, 100_000]))
    def probe(self, code: int, back: int, block: int) -> None:
        newest = self.clock - back
        expected = self.model.matches(code, newest, newest + 60)
        for ring in self.rings:
            assert found(ring, KEY, code, newest, newest + 60, block) == expected

    @rule(
        codes=st.lists(st.integers(0, 41), min_size=1, max_size=20), back=st.integers(-50, 150), step=st.integers(-9, 9)
    )
    def ask(self, codes: list[int], back: int, step: int) -> None:
        newest = self.clock - back + step * np.arange(len(codes), dtype=np.int64)
        pairs = zip(codes, newest.tolist(), strict=True)
        expected = [bool(self.model.matches(code, at, at + 60)) for code, at in pairs]
        for ring in self.rings:
            is_met = np.zeros(len(codes), dtype=np.bool_)
            ring.mark_met(KEY, numbers(*codes), newest, newest + 60, is_met)
            assert is_met.tolist() == expected

    @rule(back=st.integers(-50, 150))
    def probe_all(self, back: int) -> None:
        newest = self.clock - back
        expected = self.model.matches(None, newest, newest)
        for ring in self.rings:
            assert found(ring, ALL, 0, newest, newest, 512) == expected

    @invariant()
    def live_rows_are_readable(self) -> None:
        rows = np.arange(self.model.first, len(self.model.rows), dtype=np.int64)
        for ring in self.rings:
            assert (ring.first, ring.next, ring.live) == (self.model.first, len(self.model.rows), len(rows))
            if len(rows):
                live = np.array(self.model.rows[self.model.first :])
                assert (ring.get("value", rows) == live[:, 0]).all()
                assert (ring.get("wide", rows) == np.stack([live[:, 0], -live[:, 0]], axis=1)).all()
                newest, deadline = ring.times(rows)
                assert (newest == live[:, 1]).all()
                assert (deadline == live[:, 2]).all()


TestRingAgainstAList = RingAgainstAList.TestCase
TestRingAgainstAList.settings = settings(max_examples=15, stateful_step_count=25)


def test_a_probe_hands_over_blocks_without_losing_or_repeating() -> None:
    ring = ring_of(ProcessArena())
    count = 10_000
    same = np.zeros(count, dtype=np.int64)
    add(ring, same, same, same)
    blocks = list(ring.probe(KEY, numbers(0, 5, 0), numbers(0, 0, 0), numbers(9, 9, 9), block=4096))
    assert max(len(block.rows) for block in blocks) <= 4096
    for probing in (0, 2):
        rows = np.concatenate([block.rows[block.probes == probing] for block in blocks])
        assert sorted(rows.tolist()) == list(range(count))
    assert sum(len(block.rows) for block in blocks) == 2 * count
    assert sum(block.visited for block in blocks) == 2 * count


@pytest.mark.parametrize("block", [1, 7, WAITING, 100_000])
def test_a_probe_of_many_rows_continues_after_any_block(block: int) -> None:
    ring = ring_of(ProcessArena())
    random = np.random.default_rng(11)
    held, probing = random.integers(0, 300, 1500), random.integers(0, 330, 3 * WAITING + 5)
    times = np.arange(len(held), dtype=np.int64)
    add(ring, held, times, times + 1200)
    ring.drop(1300)
    newest = random.integers(1300, 2000, len(probing))
    blocks = list(ring.probe(KEY, probing, newest, newest, block))
    fits = (held == probing[:, None]) & (times <= newest[:, None]) & (newest[:, None] <= times + 1200)
    pairs = {(int(probe), int(row)) for probe, row in zip(*np.nonzero(fits), strict=True) if row >= ring.first}
    found = [pair for b in blocks for pair in zip(b.probes.tolist(), b.rows.tolist(), strict=True)]
    assert len(found) == len(pairs)
    assert set(found) == pairs
    # Codes this small never share a head, so live rows of other codes are not visited.
    assert sum(b.visited for b in blocks) <= int((held[ring.first :] == probing[:, None]).sum())


def test_an_existence_probe_ends_at_the_first_match_and_runs_once() -> None:
    ring = ring_of(ProcessArena(), span=100)
    held = np.repeat(np.arange(300, dtype=np.int64), 5)
    times = np.arange(len(held), dtype=np.int64)
    add(ring, held, times, times + 100)
    probing = np.arange(280, 320, dtype=np.int64)
    newest, is_met = np.full(len(probing), 1500), np.zeros(len(probing), dtype=np.bool_)
    assert ring.mark_met(KEY, probing, newest, newest + 100, is_met) == 20
    assert is_met.tolist() == [True] * 20 + [False] * 20
    assert ring.mark_met(KEY, probing, newest, newest + 100, is_met) == 0


def test_a_question_passes_over_rows_of_other_keys_in_its_chain() -> None:
    ring, random = ring_of(ProcessArena(), span=100), np.random.default_rng(3)
    held = random.integers(0, 1 << 60, 6_000)
    times = np.zeros(len(held), dtype=np.int64)
    add(ring, held, times, times + 100)
    probing = np.concatenate([held[::3], random.integers(0, 1 << 60, 2_000)])
    is_met = np.zeros(len(probing), dtype=np.bool_)
    visited = ring.mark_met(KEY, probing, np.zeros_like(probing), np.zeros_like(probing), is_met)
    assert is_met.tolist() == np.isin(probing, held).tolist()
    # Of so many keys, some share a head.
    assert visited > is_met.sum()


@pytest.mark.parametrize("span", [None, 100])
def test_rows_that_are_overdue_for_later_probes_are_passed_over(span: int | None) -> None:
    ring = ring_of(ProcessArena(), span)
    times = np.arange(4 * WAITING, dtype=np.int64)
    same = np.zeros(len(times), dtype=np.int64)
    add(ring, same, times, times + 100)
    late = np.arange(len(times), len(times) + 2 * WAITING, dtype=np.int64)
    (matches,) = ring.probe(KEY, same[: len(late)], late, late + 100, block=1 << 16)
    # Of the first WAITING probes the first needs 100 rows; the others have the same ones to pass.
    assert matches.visited == 100 * WAITING
    assert len(matches.rows) == 100 * 101 // 2
    # Times that go back find what was passed over before.
    back = np.concatenate([late, times[: 2 * WAITING]])
    pairs = sum(len(block.rows) for block in ring.probe(KEY, back * 0, back, back + 100))
    fits = (times <= back[:, None] + 100) & (back[:, None] <= times + 100)
    assert pairs == int(fits.sum())


def test_row_numbers_may_outgrow_their_links() -> None:
    """Links are 32 bits wide; only the nearest row below with these bits is meant."""
    ring = ring_of(ProcessArena(), span=100)
    ring.first = ring.next = 2**32 - 3
    first = add(ring, numbers(7, 8, 7, 8, 7), numbers(1, 2, 3, 4, 5), numbers(101, 102, 103, 104, 105))
    assert found(ring, KEY, 7, 5, 105) == [(first, 5, 101), (first + 2, 5, 103), (first + 4, 5, 105)]
    # A head that is 2**32 rows old seems to be a live row: it belongs to another chain and ends.
    ring.first = ring.next = ring.next + 2**32 - 1
    add(ring, numbers(9, 9), numbers(6, 6), numbers(106, 106))
    assert found(ring, KEY, 7, 6, 106) == []
    assert len(found(ring, ALL, 0, 6, 106)) == 2


@pytest.mark.parametrize("is_read", [False, True])
def test_an_array_is_lengthened_where_it_stands(tmp_path: Path, is_read: bool) -> None:
    for arena in (ProcessArena(), MappedArena(tmp_path)):
        array = arena.allocate("a", (1024, 2), "<i8")
        array[:] = np.arange(2048).reshape(1024, 2)
        reading = array[:4] if is_read else None
        del array
        longer = arena.extend("a", (4096, 2), "<i8")
        assert longer.shape == (4096, 2)
        assert longer[:1024].ravel().tolist() == list(range(2048))
        assert reading is None or reading.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_ring_gives_back_what_it_has_outgrown(tmp_path: Path) -> None:
    ring = ring_of(MappedArena(tmp_path))
    add(ring, np.arange(5000), np.arange(5000), np.arange(5000))
    wide = sum(file.stat().st_size for file in tmp_path.iterdir())
    ring.drop(5000)
    add(ring, numbers(1), numbers(6000), numbers(6000))
    assert ring.capacity == ring_module.SMALLEST_CAPACITY
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < wide / 4
    assert found(ring, KEY, 1, 6000, 6000) == [(5000, 6000, 6000)]


def test_a_ring_grows_where_it_stands(tmp_path: Path) -> None:
    ring = ring_of(MappedArena(tmp_path))
    times = np.arange(1000, dtype=np.int64)
    add(ring, times % 10, times, times)
    files = {file.name for file in tmp_path.iterdir()}
    add(ring, times % 10, times, times)
    assert ring.capacity == 2 * ring_module.SMALLEST_CAPACITY
    assert {file.name for file in tmp_path.iterdir()} == files


def test_another_process_finds_the_state(tmp_path: Path) -> None:
    ring = ring_of(MappedArena(tmp_path))
    add(ring, numbers(4, 5, 4), numbers(1, 2, 3), numbers(11, 12, 13))
    ring.drop(12)
    script = f"""
import json
import numpy as np
from pathlib import Path
from anabranch.engine.state.arena import MappedArena
from anabranch.engine.state.ring import Ring
ring = Ring(MappedArena(Path({str(tmp_path)!r})), "state", {COLUMNS!r}, {INDEXES!r})
ring.reopen({ring.layout()!r})
one = np.array([4])
(matches,) = ring.probe(("k",), one, np.array([10]), np.array([20]))
assert matches.rows.tolist() == [2], matches
first = ring.append({{"value": one, "wide": np.array([[4, -4]]), "deadline": np.array([19])}}, 1)
ring.link(first, lambda index: one if index else one * 0, np.array([9]))
print(json.dumps(ring.layout()))
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(ring_module.__file__).parents[3])}
    printed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    ).stdout
    ring.reopen(json.loads(printed))
    assert found(ring, KEY, 4, 10, 20) == [(2, 10, 13), (3, 10, 19)]


def test_a_full_file_system_is_an_error_and_not_a_bus_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, start: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StorageFull, match="bytes of hot state") as caught:
        add(ring_of(MappedArena(tmp_path)), numbers(1), numbers(1), numbers(1))
    assert "ANABRANCH_HOT_FOLDER" in caught.value.hint
