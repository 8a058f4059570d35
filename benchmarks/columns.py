"""Columns of generated streams. A column is a value that says how its values are drawn; times are drawn before it.

Texts are cut from one long page of words, each value from a place of its own, so that no two rows share one and files
do not shrink to dictionaries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Integers = npt.NDArray[np.int64]
PAGE = 1 << 20
EPOCH_OF_HOT_ROWS = 100
"""One row in so many is a hot one, which half of the references go to while it is the newest of its kind."""


@dataclass(frozen=True)
class Drawn:
    """What a column may be drawn from: the times of all streams, and the domain and window of the workload."""

    times: Sequence[Integers]
    stream: int
    domain: int
    window: int
    random: np.random.Generator

    @property
    def rows(self) -> int:
        return len(self.times[self.stream])


class Column(Protocol):
    """A column of a stream."""

    @property
    def name(self) -> str: ...
    @property
    def spark_type(self) -> str: ...
    def values(self, drawn: Drawn) -> pa.Array: ...


@dataclass(frozen=True)
class Uniform:
    """A key, uniform over the domain of the workload."""

    name: str
    is_text: bool = False

    @property
    def spark_type(self) -> str:
        return _key_type(self.is_text)

    def values(self, drawn: Drawn) -> pa.Array:
        return _key(drawn.random.integers(0, drawn.domain, drawn.rows), self.is_text)


@dataclass(frozen=True)
class Primary:
    """A key that names its row: the number of the row."""

    name: str
    is_text: bool = False

    @property
    def spark_type(self) -> str:
        return _key_type(self.is_text)

    def values(self, drawn: Drawn) -> pa.Array:
        return _key(np.arange(drawn.rows, dtype=np.int64), self.is_text)


@dataclass(frozen=True)
class Reference:
    """A key that names a row of another stream, one of the last half window; half of them name its newest hot row."""

    name: str
    of: int
    is_text: bool = False

    @property
    def spark_type(self) -> str:
        return _key_type(self.is_text)

    def values(self, drawn: Drawn) -> pa.Array:
        own, others = drawn.times[drawn.stream], drawn.times[self.of]
        stop = np.searchsorted(others, own, side="right")
        start = np.searchsorted(others, own - drawn.window // 2)
        chosen = start + (drawn.random.random(drawn.rows) * (stop - start)).astype(np.int64)
        hot = (stop - 1) // EPOCH_OF_HOT_ROWS * EPOCH_OF_HOT_ROWS
        is_hot = (drawn.random.random(drawn.rows) < 0.5) & (hot >= start)
        return _key(np.where(is_hot, hot, chosen), self.is_text)


@dataclass(frozen=True)
class Measured:
    """A measured value, uniform between 0 and a bound."""

    name: str
    bound: float

    @property
    def spark_type(self) -> str:
        return "double"

    def values(self, drawn: Drawn) -> pa.Array:
        return pa.array(drawn.random.random(drawn.rows) * self.bound)


@dataclass(frozen=True)
class Text:
    """A text of so many bytes."""

    name: str
    shortest: int
    longest: int

    @property
    def spark_type(self) -> str:
        return "string"

    def values(self, drawn: Drawn) -> pa.Array:
        page = _page()
        lengths = drawn.random.integers(self.shortest, self.longest + 1, drawn.rows)
        starts = drawn.random.integers(0, PAGE - self.longest, drawn.rows)
        stops = np.cumsum(lengths)
        offsets = np.concatenate([[0], stops]).astype(np.int32)
        places = np.arange(stops[-1] if len(stops) else 0) + np.repeat(starts - offsets[:-1], lengths)
        return pa.Array.from_buffers(pa.string(), drawn.rows, [None, pa.py_buffer(offsets), pa.py_buffer(page[places])])


@cache
def _page() -> npt.NDArray[np.uint8]:
    """Words of two to nine letters, with blanks between them."""
    random = np.random.default_rng(11)
    page = random.choice(np.frombuffer(b"eeeettaaooiinnsshhrrdlcumwfgypbvk", dtype=np.uint8), PAGE)
    page[np.cumsum(random.integers(3, 11, PAGE // 11))] = ord(" ")
    return page


def _key_type(is_text: bool) -> str:
    return "string" if is_text else "bigint"


def _key(numbers: Integers, is_text: bool) -> pa.Array:
    """Keys as numbers, or as texts of 16 bytes."""
    keys = pa.array(numbers)
    if not is_text:
        return keys
    return pc.binary_join_element_wise("key-", pc.utf8_lpad(keys.cast(pa.string()), 12, "0"), "")
