"""Reading a YAML document entry by entry, so that whatever is wrong is named by the path that leads to it.

An `Entry` gives its value as what it should be, or raises a SpecError that says what stands there and what to write
instead. Unknown names are refused with the nearest known one, and so is a name that appears twice.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from anabranch.errors import SpecError
from anabranch.window import parse_duration

NOTHING: Mapping[str, str] = MappingProxyType({})
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
"""How a place begins that is a URI and no path."""


def document(text: str) -> Any:
    """The value of a YAML text."""
    try:
        return yaml.load(text, Loader=_DistinctKeys)
    except yaml.YAMLError as error:
        detail = str(error).replace('in "<unicode string>", ', "at ")
        hint = "indent entries of one level equally, by spaces and not tabs; see 'anabranch run --help'"
        raise SpecError("the spec is not YAML", detail=detail, hint=hint) from error


@dataclass(frozen=True)
class Entry:
    """A value of the document with the path that leads to it."""

    path: str
    value: Any

    def wrong(self, what: str, hint: str, detail: str = "") -> SpecError:
        return SpecError(f"entry '{self.path}' {what}" if self.path else f"the spec {what}", detail=detail, hint=hint)

    def missing(self, key: str, example: str) -> SpecError:
        return SpecError(f"entry '{self.inside(key)}' is missing", hint=f"write for example {example}")

    def inside(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def named(self) -> dict[str, Entry]:
        """The entries below, under names of the user's choice."""
        if not isinstance(self.value, Mapping):
            raise self.wrong(f"is {kind(self.value)}", f"write entries below it, as in '{self.path or 'query'}: …'")
        for key in self.value:
            if not isinstance(key, str):
                raise self.wrong(f"has the key {key!r}, which is {kind(key)}", f'quote it: "{key}"')
        return {key: Entry(self.inside(key), value) for key, value in self.value.items() if value is not None}

    def filled(self) -> dict[str, Entry]:
        """The same where none may be empty: what a user has named is not passed over."""
        entries = self.named()
        for key in self.value:
            if key not in entries:
                raise Entry(self.inside(key), None).wrong("is empty", "write its entries below it, indented further")
        return entries

    def mapping(self, known: str, required: Mapping[str, str] = NOTHING) -> dict[str, Entry]:
        """The entries below, none unknown and none of the required ones missing, each of which has an example."""
        entries, names = self.named(), known.split()
        for key in self.value:
            if key not in names:
                close = get_close_matches(key, names, n=1)
                hint = f"did you mean '{close[0]}'?" if close else f"known here are {', '.join(names)}"
                raise SpecError(f"entry '{self.inside(key)}' is not known", hint=hint)
        for key, example in required.items():
            if key not in entries:
                raise self.missing(key, example)
        return entries

    def text(self, hint: str = "write a text") -> str:
        if not isinstance(self.value, str) or not self.value.strip():
            raise self.wrong(f"is {kind(self.value)}", hint)
        return self.value.strip()

    def texts(self) -> tuple[str, ...]:
        """Several texts; one need not stand in a list."""
        listed = self.value if isinstance(self.value, list) else [self.value]
        return tuple(Entry(self.path, value).text() for value in listed)

    def named_values(self) -> dict[str, Any]:
        return {name: entry.value for name, entry in self.named().items()}

    def duration(self) -> int:
        """Microseconds, not negative."""
        hint = "write a number and a unit, such as 10 seconds"
        if not isinstance(self.value, str):
            raise self.wrong(f"is {kind(self.value)}", hint)
        try:
            micros = parse_duration(self.value)
        except ValueError as error:
            raise self.wrong("is not a duration", hint, str(error)) from error
        if micros < 0:
            raise self.wrong(f"is negative: '{self.value}'", hint)
        return micros

    def timeout(self) -> str:
        """A duration as written, or `none`."""
        if self.value != "none":
            self.duration()
        return str(self.value)

    def count(self) -> int:
        if not isinstance(self.value, int) or isinstance(self.value, bool) or self.value < 1:
            raise self.wrong(f"is {self.value!r}", "write a whole number of at least 1")
        return self.value

    def flag(self) -> bool:
        if not isinstance(self.value, bool):
            raise self.wrong(f"is {kind(self.value)}", "write true or false")
        return self.value

    def location(self, folder: Path) -> str:
        """A path, which is one below the folder unless it is absolute or a URI."""
        text = self.text()
        return text if SCHEME.match(text) else os.path.normpath(folder / text)

    def options(self) -> tuple[tuple[str, str], ...]:
        """Options as the texts Spark wants."""
        options = []
        for key, entry in self.named().items():
            match entry.value:
                case bool():
                    options.append((key, str(entry.value).lower()))
                case str() | int() | float():
                    options.append((key, str(entry.value)))
                case _:
                    raise entry.wrong(f"is {kind(entry.value)}", "write a text, a number, true or false")
        return tuple(options)


def kind(value: object) -> str:
    match value:
        case None:
            return "empty"
        case bool():
            return "a truth value"
        case int() | float():
            return "a number"
        case str():
            return "a text" if value.strip() else "empty"
        case Mapping():
            return "a group of entries"
        case list():
            return "a list"
        case _:
            return f"a {type(value).__name__}"


class _DistinctKeys(yaml.SafeLoader):
    """YAML without its habit of letting the last of two equal keys win."""

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
