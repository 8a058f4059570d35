"""The parser's position in the tokens: looks ahead, takes or expects a token, and reports what was expected."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from anabranch.cql.ast import Identifier, Statement
from anabranch.cql.lexer import Kind, Token, tokens
from anabranch.errors import ParseError, Unsupported
from anabranch.lang.expr import OwnFunction

# fmt: off
RESERVED = frozenset({
    "ALL", "AND", "ANTI", "AS", "BETWEEN", "BY", "CASE", "CAST", "CROSS", "DISTINCT", "ELSE", "END", "EXCEPT",
    "EXISTS", "FALSE", "FROM", "FULL", "GROUP", "HAVING", "IN", "INNER", "INTERSECT", "IS", "JOIN", "LATERAL",
    "LEFT", "LIKE", "LIMIT", "NATURAL", "NOT", "NULL", "ON", "OR", "ORDER", "OUTER", "OVER", "QUALIFY", "RIGHT",
    "SELECT", "SEMI", "THEN", "TRUE", "UNION", "USING", "WHEN", "WHERE",
})
# fmt: on
"""Words that are never names unless quoted; every other keyword may also name a column, a stream or an alias."""

_ONLY_NAMES = ("END", "IN", "IS", "BY", "ORDER", "LIMIT", "LEFT", "RIGHT", "FULL", "ALL", "CASE", "LIKE")
"""Reserved words that are names after a dot."""

MOST_NESTED = 40
"""The maximum nesting depth of brackets, CASE, NOT and signs; the parser makes eight calls per level."""


NO_FUNCTIONS: Mapping[str, OwnFunction] = MappingProxyType({})


class Cursor:
    """A position in the tokens of one text."""

    def __init__(
        self,
        text: str,
        subquery: Callable[[Cursor], Statement] | None = None,
        functions: Mapping[str, OwnFunction] = NO_FUNCTIONS,
    ) -> None:
        """`subquery` parses a SELECT inside an expression; `functions` are user-defined, by lower-case name."""
        self.text = text
        self.subquery = subquery
        self.functions = functions
        self.named: dict[str, Statement] = {}
        """The subqueries of WITH, by lower-case name."""
        self._tokens = tokens(text)
        self._at = 0
        self._depth = 0

    @contextmanager
    def nested(self) -> Iterator[None]:
        """Enters one nesting level; raises an error with a position, not a RecursionError, if nesting is too deep."""
        self._depth += 1
        if self._depth > MOST_NESTED:
            raise ParseError(
                f"expressions are nested more than {MOST_NESTED} deep",
                text=self.text,
                span=self.peek().span,
                hint="remove unneeded brackets, or compute a part before the stream is registered",
            )
        yield
        self._depth -= 1

    @property
    def is_outside(self) -> bool:
        """True outside all nested expressions."""
        return self._depth == 0

    def peek(self, ahead: int = 0) -> Token:
        return self._tokens[min(self._at + ahead, len(self._tokens) - 1)]

    def take(self) -> Token:
        token = self.peek()
        self._at += 1
        return token

    @property
    def end_of_last(self) -> int:
        """The end of the last consumed token."""
        return self._tokens[self._at - 1].span.end if self._at else 0

    def take_word(self, *words: str) -> Token | None:
        return self.take() if self.peek().is_word(*words) else None

    def take_symbol(self, *symbols: str) -> Token | None:
        return self.take() if self.peek().is_symbol(*symbols) else None

    def expect_word(self, word: str, *, also: str = "", instead: str = "") -> Token:
        token = self.take_word(word)
        if token is None:
            raise self.unexpected(instead or word, also=also)
        return token

    def expect_symbol(self, symbol: str, *, also: str = "") -> Token:
        token = self.take_symbol(symbol)
        if token is None:
            raise self.unexpected(f"'{symbol}'", also=also)
        return token

    def at_name(self) -> bool:
        token = self.peek()
        return token.kind is Kind.QUOTED or (token.kind is Kind.WORD and token.value.upper() not in RESERVED)

    def identifier(self, expected: str) -> Identifier:
        if not self.at_name():
            hint = ""
            if self.peek().kind is Kind.WORD:
                hint = f"'{self.peek().value}' is a reserved word; write it in double quotes to use it as a name"
            raise self.unexpected(expected, hint=hint)
        token = self.take()
        return Identifier(token.value, token.span)

    def member(self, expected: str) -> Identifier:
        """Takes a name after a dot, where words such as END are unambiguous."""
        token = self.peek()
        if token.is_word(*_ONLY_NAMES):
            self.take()
            return Identifier(token.value, token.span)
        return self.identifier(expected)

    def unexpected(self, expected: str, *, also: str = "", hint: str = "") -> ParseError:
        wanted = f"{also} or {expected}" if also else expected
        token = self.peek()
        return ParseError(f"expected {wanted}, found {token}", text=self.text, span=token.span, hint=hint)

    def unsupported(self, message: str, remedy: str) -> Unsupported:
        return Unsupported(message, text=self.text, span=self.peek().span, hint=remedy)
