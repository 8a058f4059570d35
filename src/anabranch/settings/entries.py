"""Reads settings: entries of YAML documents and arguments of the API, with one style of error.

An `Entry` is a value with its path. It returns the value as the requested type, or raises an error that names the
entry, its value and a valid alternative. Unknown names are rejected with the nearest known one, as are names that
appear twice in a YAML mapping.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import yaml

from anabranch.errors import AnabranchError, SpecError
from anabranch.lang.sizes import parse_size
from anabranch.lang.window import parse_duration
from anabranch.settings.removed import hint_for
from anabranch.settings.secrets import HIDDEN, is_secret, without_secrets

NOTHING: Mapping[str, str] = MappingProxyType({})
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
"""The start of a URI; a path does not match it."""
LARGEST = sys.float_info.max
DURATION_HINT = "write a number and a unit, such as 10 seconds"

T = TypeVar("T")
D = TypeVar("D")
Name = TypeVar("Name", bound=str)


def document(text: str, what: str = "the spec") -> Any:
    """Returns the value of a YAML text."""
    try:
        return yaml.load(text, Loader=_DistinctKeys)
    except RecursionError as error:
        raise SpecError(f"{what} is nested too deep", hint="close brackets, and indent by a few levels") from error
    except yaml.YAMLError as error:
        detail = without_secrets(str(error).replace('in "<unicode string>", ', "at "))
        hint = "indent entries of one level equally, by spaces and not tabs; see 'anabranch run --help'"
        raise SpecError(f"{what} is not YAML", detail=detail, hint=hint) from error


@dataclass(frozen=True)
class Entry:
    """A value with its path, and the type of error to raise if the value is wrong."""

    path: str
    value: Any
    error: type[AnabranchError] = SpecError
    title: str = ""
    """The name of the entry in errors, if not its path."""
    file: str = ""
    """The file of the entry, if errors should name it."""

    @property
    def name(self) -> str:
        return self.title or (f"entry '{self.path}'" if self.path else "the spec")

    def wrong(self, what: str, hint: str, detail: str = "") -> AnabranchError:
        """Returns the error `<entry> <what>`."""
        return self._error(f"{self.name} {what}", hint, detail)

    def _error(self, message: str, hint: str, detail: str = "") -> AnabranchError:
        place = f"in file '{self.file}'" if self.file else ""
        return self.error(message, detail="\n".join(filter(None, (place, detail))), hint=hint)

    def refused(self, hint: str, detail: str = "") -> AnabranchError:
        """Returns the error for a wrong value, with a hint for a valid one."""
        value = HIDDEN if isinstance(self.value, str) and is_secret(self.path) else found(self.value)
        return self.wrong(f"is {value}", hint, detail)

    def missing(self, key: str, example: str) -> AnabranchError:
        return self._error(f"entry '{self.inside(key)}' is missing", f"write for example {example}")

    def inside(self, key: str) -> str:
        """Returns the path of an entry below this one."""
        return f"{self.path}.{key}" if self.path else key

    def below(self, key: str, value: object) -> Entry:
        return Entry(self.inside(key), value, self.error, file=self.file)

    # --- groups of entries ----------------------------------------------------------------------------------------

    def named(self) -> dict[str, Entry]:
        """Returns the entries below, with any names, without the empty ones.

        Only for entries that are checked by name, as in `mapping`; `filled` reads user-chosen names.
        """
        if not isinstance(self.value, Mapping):
            raise self.refused(f"write entries below it, as in '{self.path or 'query'}: …'")
        for key in self.value:
            if not isinstance(key, str):
                raise self.wrong(f"has the key {found(key)}, which is not a text", f'quote it: "{key}"')
        return {key: self.below(key, value) for key, value in self.value.items() if value is not None}

    def filled(self, hint: str = "write its entries below it, indented further") -> dict[str, Entry]:
        """Returns the entries below; rejects empty ones, so that no user-chosen name is ignored."""
        entries = self.named()
        for key in self.value:
            if key not in entries:
                raise self.below(key, None).refused(hint)
        return entries

    def require(self, required: Mapping[str, str]) -> dict[str, Entry]:
        """Returns the entries below, with any names. `required` has an example for each required entry."""
        entries = self.named()
        for key, example in required.items():
            if key not in entries:
                raise self.missing(key, example)
        return entries

    def mapping(self, known: str, required: Mapping[str, str] = NOTHING) -> dict[str, Entry]:
        """Returns the entries below; rejects unknown ones, even if they are empty.

        `required` has an example for each required entry. A known entry that is empty counts as absent.
        """
        names = known.split()
        self.named()
        for key in self.value:
            if key not in names:
                if (hint := hint_for(self.inside(key))) is not None:
                    raise self._error(f"entry '{self.inside(key)}' is no longer a setting", hint)
                raise self._error(f"unknown entry '{self.inside(key)}'", suggestion(key, names))
        return self.require(required)

    def items(self, example: str) -> list[Entry]:
        """Returns the entries of a list; their paths end with their position."""
        if not isinstance(self.value, list):
            raise self.refused(f"write a list such as {example}")
        return [self.below(str(position), value) for position, value in enumerate(self.value)]

    # --- single values --------------------------------------------------------------------------------------------

    def text(self, hint: str = "write a text") -> str:
        if not isinstance(self.value, str) or not self.value.strip():
            raise self.refused(hint)
        return self.value.strip()

    def label(self) -> str:
        """Returns a name, even if YAML has parsed it as a number."""
        return (
            str(self.value)
            if isinstance(self.value, int) and not isinstance(self.value, bool)
            else self.text("write a name")
        )

    def texts(self) -> tuple[str, ...]:
        """Returns a list of texts; a single text needs no list."""
        listed = self.value if isinstance(self.value, list) else [self.value]
        return tuple(replace(self, value=value).text() for value in listed)

    def choice(self, known: Sequence[Name]) -> Name:
        """Returns one of the known texts; accepts `off` even if YAML has parsed it as false."""
        wanted = "off" if self.value is False else self.value
        for name in known:
            if name == wanted:
                return name
        close = get_close_matches(str(self.value), known, n=1)
        raise self.refused(f"did you mean '{close[0]}'?" if close else f"write one of {', '.join(known)}")

    def number(
        self, low: float = -math.inf, high: float = LARGEST, *, above: float = -math.inf, hint: str = ""
    ) -> float:
        """Returns a number from `low` to `high`, and greater than `above`; infinity only if `high` is infinite."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refused(hint or "write a number")
        if not (low <= value <= high and value > above):
            raise self.refused(hint or ("write a number" if low == -math.inf else f"write a number of {low:g} or more"))
        return float(value)

    def count(self, hint: str = "write a whole number of at least 1", *, least: int = 1) -> int:
        if not isinstance(self.value, int) or isinstance(self.value, bool) or self.value < least:
            raise self.refused(hint)
        return self.value

    def size(self, low: float = 0.0, high: float = LARGEST, *, above: float = -math.inf, hint: str = "") -> float:
        """Returns bytes from a number or a text with a unit."""
        hint = hint or "write a number of bytes, such as 500000000 or 500 MB"
        if not isinstance(self.value, str):
            return self.number(low, high, above=above, hint=hint)
        try:
            size = parse_size(self.value)
        except ValueError as error:
            raise self.refused(hint, str(error)) from error
        if not (low <= size <= high and size > above):
            raise self.refused(hint)
        return size

    def duration(self, hint: str = DURATION_HINT) -> int:
        """Returns the non-negative microseconds of a text such as `10 seconds`."""
        if not isinstance(self.value, str) or not self.value.strip():
            raise self.refused(hint)
        try:
            micros = parse_duration(self.value)
        except ValueError as error:
            raise self.refused(hint, str(error)) from error
        if micros < 0:
            raise self.wrong(f"is negative: '{self.value}'", hint)
        return micros

    def seconds(self, hint: str = "write a duration such as 10 seconds") -> float:
        """Returns the seconds of a positive duration."""
        micros = self.duration(hint)
        if micros == 0:
            raise self.refused(hint)
        return micros / 1e6

    def timeout(self) -> int | None:
        """Returns positive microseconds, or None for the text `none`."""
        if isinstance(self.value, str) and self.value.strip().lower() == "none":
            return None
        micros = self.duration(f"{DURATION_HINT}, or none to wait for ever")
        if micros == 0:
            raise self.refused("write a duration above zero, or none to wait for ever")
        return micros

    def flag(self) -> bool:
        if not isinstance(self.value, bool):
            raise self.refused("write true or false")
        return self.value

    def location(self, folder: Path) -> str:
        """Returns a path; a relative path is resolved against the folder."""
        text = self.text()
        return text if SCHEME.match(text) else os.path.normpath(folder / text)

    def options(self) -> tuple[tuple[str, str], ...]:
        """Returns options as texts for Spark."""
        options = []
        for key, entry in self.filled('write its value, or "" for an empty text').items():
            match entry.value:
                case bool():
                    options.append((key, str(entry.value).lower()))
                case str() | int() | float():
                    options.append((key, str(entry.value)))
                case _:
                    raise entry.refused("write a text, a number, true or false")
        return tuple(options)


def argument(title: str, value: object, error: type[AnabranchError] = SpecError) -> Entry:
    """Returns an argument of the API as an entry; `title` is its name in errors, such as "the watermark of 's0'"."""
    return Entry("", value, error, title)


def optional(entries: Mapping[str, Entry], name: str, read: Callable[[Entry], T], default: D) -> T | D:
    """Reads an entry if it exists, else returns the default."""
    return read(entries[name]) if name in entries else default


def suggestion(name: object, known: Iterable[str]) -> str:
    """Returns a hint for an unknown name: the nearest known one, or all of them.

    >>> suggestion("rate", ["rates", "filters"])
    "did you mean 'rates'?"
    """
    names = list(known)
    close = get_close_matches(str(name), names, n=1)
    return f"did you mean '{close[0]}'?" if close else f"known here are {', '.join(names)}"


def found(value: object) -> str:
    """Formats a value for errors.

    >>> found("soon"), found(5), found(True), found([1])
    ("'soon'", '5', 'true', 'a list')
    """
    match value:
        case None:
            return "empty"
        case bool():
            return str(value).lower()
        case int() | float():
            return f"{value:g}" if isinstance(value, float) else str(value)
        case str():
            return f"'{value}'" if value.strip() else "empty"
        case Mapping():
            return "a group of entries" if value else "empty"
        case list():
            return "a list"
        case _:
            return f"a {type(value).__name__}"


class _DistinctKeys(yaml.SafeLoader):
    """A YAML loader that rejects duplicate keys; YAML itself would take the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    line = key.start_mark.line + 1
                    raise SpecError(
                        f"entry '{key.value}' appears twice",
                        detail=f"the second is on line {line}",
                        hint="keep one of them",
                    )
                seen.add(key.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping
