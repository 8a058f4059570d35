"""Regular expressions that mean the same to Arrow (RE2), to Java and to Python: validation and translation.

Supported are literals, `.`, classes, alternation, repetition, groups, `^`, `$`, `\\d \\w \\s \\b` and their
complements. A dot does not match a line feed; `$` is the end of the text; letters, digits and words are those of ASCII.

Limit: rejects everything that the engines interpret differently or that one of them lacks: flags, look-around,
references, POSIX and Unicode classes, operations on classes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from anabranch.functions.arguments import Arguments, widened, wrong
from anabranch.functions.types import BIGINT, BOOLEAN, STRING
from anabranch.lang.expr import Call, Expr, Literal

_WORD = "0-9A-Za-z_"
_BLANK = "\\t\\n\\f\\r "
_EDGE = f"(?:(?<=[{_WORD}])(?![{_WORD}])|(?<![{_WORD}])(?=[{_WORD}]))"
_NO_EDGE = f"(?:(?<=[{_WORD}])(?=[{_WORD}])|(?<![{_WORD}])(?![{_WORD}]))"
_SPECIAL = frozenset("dDwWsSbBtnrf")
_MOST_REPEATS = 1000
_HINT = "write it with classes such as [0-9A-Za-z], groups (…) and (?:…), and | * + ? {n,m} ^ $"


@dataclass(frozen=True)
class Regex:
    """A pattern in the forms of the three engines; `groups` counts its capturing groups."""

    written: str
    java: str
    python: str
    groups: int
    is_empty_possible: bool
    """True if the pattern can match an empty text."""

    def extracting(self, group: int) -> str:
        """Returns the RE2 pattern in which one group (0 for the whole match) is named and no other group captures."""
        if group == 0:
            return f"(?P<g>{_without_groups(self.written, 0)})"
        return _without_groups(self.written, group)


@lru_cache(maxsize=256)
def regex(written: str) -> Regex:
    """Parses a pattern; raises ValueError if it is not supported."""
    java: list[str] = []
    python: list[str] = []
    groups, in_class, at = 0, False, 0
    while at < len(written):
        character = written[at]
        following = written[at + 1 : at + 2]
        both = character
        if character == "\\":
            at += 1
            if not following or (following.isalnum() and following not in _SPECIAL):
                raise _refused(written, f"'\\{following}'")
            if in_class and following in "bBDWS":
                raise _refused(written, f"'\\{following}' inside a class")
            both = "\\" + following
            if following in "sS":
                both = _BLANK if in_class else f"[{'^' if following == 'S' else ''}{_BLANK}]"
            java.append({"b": _EDGE, "B": _NO_EDGE}.get(following, both))
            python.append(both)
        elif in_class:
            if character == "[" or (character == "&" and following == "&") or (character == "-" and following == "-"):
                raise _refused(written, f"'{character}{following}' inside a class")
            in_class = character != "]"
            java.append(both)
            python.append(both)
        else:
            if character == "[":
                in_class = True
                both = "[^" if following == "^" else "["
                at += following == "^"
                if written[at + 1 : at + 2] == "]":
                    raise _refused(written, "a class that begins with ']'")
            elif character == "(":
                if following == "?" and written[at + 2 : at + 3] != ":":
                    raise _refused(written, f"'{written[at : at + 3]}'")
                groups += following != "?"
            elif character in "*+?}" and following == "+":
                raise _refused(written, f"'{character}+'")
            java.append("\\z" if character == "$" else both)
            python.append("\\Z" if character == "$" else both)
        at += 1
    try:
        compiled = re.compile("".join(python), re.ASCII)
    except re.error as error:
        raise ValueError(f"the pattern '{written}' is not a regular expression: {error}", _HINT) from None
    if any(
        int(count) > _MOST_REPEATS for count in re.findall(r"\{(\d+)|,(\d+)\}", written) for count in count if count
    ):
        raise ValueError(f"the pattern '{written}' repeats more than {_MOST_REPEATS} times", _HINT)
    width = re._parser.parse(compiled.pattern, re.ASCII).getwidth()[0]  # type: ignore[attr-defined]
    return Regex(written, "".join(java), compiled.pattern, groups, width == 0)


def _without_groups(written: str, kept: int) -> str:
    parts: list[str] = []
    group, in_class, at = 0, False, 0
    while at < len(written):
        character = written[at]
        if character == "\\":
            parts.append(written[at : at + 2])
            at += 2
            continue
        if in_class:
            in_class = character != "]"
        elif character == "[":
            in_class = True
        elif character == "(" and written[at + 1 : at + 2] != "?":
            group += 1
            character = "(?P<g>" if group == kept else "(?:"
        parts.append(character)
        at += 1
    return "".join(parts)


def _refused(written: str, what: str) -> ValueError:
    return ValueError(f"the pattern '{written}' has {what}, which regular expressions do not agree on", _HINT)


def _pattern(name: str, arguments: Arguments, expected: str) -> Regex:
    written = arguments[1]
    if not isinstance(written, Literal) or not isinstance(written.value, str):
        raise wrong(name, expected, arguments)
    return regex(written.value)


def matching(name: str, arguments: Arguments) -> Expr:
    expected = "(string, a string literal)"
    if len(arguments) != 2:
        raise wrong(name, expected, arguments)
    _pattern(name, arguments, expected)
    return Call(name, widened(name, expected, arguments, (STRING, STRING)), BOOLEAN)


def extraction(name: str, arguments: Arguments) -> Expr:
    expected = "(string, a string literal[, a whole number])"
    if len(arguments) == 2:
        arguments = (*arguments, Literal(1, BIGINT))
    if len(arguments) != 3:
        raise wrong(name, expected, arguments)
    found, group = _pattern(name, arguments, expected), arguments[2]
    if not isinstance(group, Literal) or not isinstance(group.value, int):
        raise wrong(name, expected, arguments)
    if not 0 <= group.value <= found.groups:
        raise ValueError(
            f"the pattern '{found.written}' has {found.groups} groups, not a group {group.value}",
            "count the opening brackets from 1; 0 is the whole match",
        )
    return Call(name, widened(name, expected, arguments, (STRING, STRING, BIGINT)), STRING)


def substitution(name: str, arguments: Arguments) -> Expr:
    expected = "(string, a string literal, a string literal)"
    if len(arguments) != 3:
        raise wrong(name, expected, arguments)
    found, by = _pattern(name, arguments, expected), arguments[2]
    if not isinstance(by, Literal) or not isinstance(by.value, str):
        raise wrong(name, expected, arguments)
    if found.is_empty_possible:
        raise ValueError(
            f"the pattern '{found.written}' of REGEXP_REPLACE may match nothing at all",
            "write it so that every match has a character, with + instead of *",
        )
    for reference in re.findall(r"\$(.?)", by.value) if "\\" not in by.value else ["\\"]:
        if not (reference.isdigit() and int(reference) <= found.groups):
            raise ValueError(
                f"the replacement '{by.value}' has '{'$' if reference != chr(92) else ''}{reference}'",
                f"$0 to ${found.groups} are the groups of the pattern; other $ and backslashes cannot be written",
            )
    return Call(name, widened(name, expected, arguments, (STRING,) * 3), STRING)
