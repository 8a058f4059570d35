"""Values of the options of our sources of streams. Invariant: a wrong value is a named error."""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.errors import CatalogError


def count_of(name: str, text: str) -> int:
    """Returns a whole number of at least 1."""
    if not (text.isdecimal() and int(text) > 0):
        raise CatalogError(f"option '{name}' is '{text}'", hint="give a whole number of at least 1")
    return int(text)


def one_of(name: str, text: str, known: Sequence[str]) -> str:
    """Returns a text that is one of the known ones."""
    if text not in known:
        raise CatalogError(f"option '{name}' is '{text}'", hint=f"give {' or '.join(known)}")
    return text
