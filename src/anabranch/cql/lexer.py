"""The lexer: splits a query text into tokens with their positions.

Words are not classified here: CQL has few keywords and most of them are good column names, so the parser checks for a
keyword where the grammar has one. Comments (`-- …` and `/* … */`) and white space separate tokens.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from anabranch.errors import ParseError, Span


class Kind(Enum):
    WORD = "word"
    QUOTED = "quoted name"
    NUMBER = "number"
    TEXT = "text"
    SYMBOL = "symbol"
    END = "end"


@dataclass(frozen=True)
class Token:
    """One token; `value` is the word as written, the unquoted name or text, the digits, or the symbol."""

    kind: Kind
    value: str
    span: Span

    def is_word(self, *words: str) -> bool:
        return self.kind is Kind.WORD and self.value.upper() in words

    def is_symbol(self, *symbols: str) -> bool:
        return self.kind is Kind.SYMBOL and self.value in symbols

    def __str__(self) -> str:
        match self.kind:
            case Kind.END:
                return "the end of the query"
            case Kind.TEXT:
                return f"text '{self.value}'"
            case _:
                return f"'{self.value}'"


_PATTERN = re.compile(
    r"""
    (?P<skip>\s+|--[^\n]*|/\*.*?\*/)
  | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
  | (?P<word>[^\W\d]\w*)
  | '(?P<text>(?:[^']|'')*)'
  | "(?P<double>(?:[^"]|"")+)"
  | `(?P<back>(?:[^`]|``)+)`
  | (?P<symbol><=>|<>|!=|<=|>=|==|\|\||::|/(?!\*)|[-+*%=<>(),.\[\];])
    """,
    re.VERBOSE | re.DOTALL,
)


def tokens(text: str) -> list[Token]:
    """Splits a query text into tokens; the last has kind END."""
    found: list[Token] = []
    at = 0
    while at < len(text):
        match = _PATTERN.match(text, at)
        if match is None:
            raise _unreadable(text, at)
        span = Span(at, match.end())
        match match.lastgroup:
            case "number":
                found.append(Token(Kind.NUMBER, match.group(), span))
            case "word":
                found.append(Token(Kind.WORD, match.group(), span))
            case "text":
                found.append(Token(Kind.TEXT, match.group("text").replace("''", "'"), span))
            case "double":
                found.append(Token(Kind.QUOTED, match.group("double").replace('""', '"'), span))
            case "back":
                found.append(Token(Kind.QUOTED, match.group("back").replace("``", "`"), span))
            case "symbol":
                found.append(Token(Kind.SYMBOL, match.group(), span))
        at = match.end()
    found.append(Token(Kind.END, "", Span(len(text), len(text))))
    return found


def _unreadable(text: str, at: int) -> ParseError:
    span = Span(at, at + 1)
    if text.startswith("/*", at):
        return ParseError("comment is not closed", text=text, span=Span(at, at + 2), hint="end it with */")
    match text[at]:
        case "'":
            return ParseError(
                "text is not closed", text=text, span=span, hint="end it with ', and write '' for a quote inside"
            )
        case '"' | "`":
            return ParseError(
                "quoted name is empty or not closed", text=text, span=span, hint=f"end it with {text[at]}"
            )
        case character:
            hint = "write the value: a query takes no parameters" if character in ":?$" else ""
            return ParseError(f"unexpected character '{character}'", text=text, span=span, hint=hint)
