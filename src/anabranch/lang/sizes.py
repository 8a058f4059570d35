"""Formats and parses amounts: memory with units in powers of ten, and counts."""

from __future__ import annotations

import re

UNITS = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)\s*([A-Za-z]*)\s*")


def size_text(size: float) -> str:
    """Formats bytes with a unit.

    >>> size_text(2_345_678)
    '2.3 MB'
    """
    for unit, amount in reversed(UNITS.items()):
        if size >= amount and unit != "B":
            return f"{size / amount:.1f} {unit}"
    return f"{size:.0f} B"


def counted(count: int, noun: str) -> str:
    """Formats a number of things.

    >>> counted(1, "plan"), counted(1200, "plan")
    ('1 plan', '1,200 plans')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def parse_size(text: str) -> float:
    """Parses bytes from `500 MB`, `1.5 GB` or a plain number; raises ValueError otherwise."""
    found = _SIZE.fullmatch(text)
    unit = (found.group(2) or "B") if found else ""
    sizes = {name.lower(): amount for name, amount in UNITS.items()}
    if found is None or unit.lower() not in sizes:
        raise ValueError(f"expected bytes such as 500000000 or '500 MB', found '{text}'")
    return float(found.group(1)) * sizes[unit.lower()]
