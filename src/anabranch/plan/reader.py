"""Reads the texts of plans, meshes and classifiers: tokens, and errors with their position.

A reader is a recursive descent over the tokens: every method takes a position and returns the position after it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from anabranch.errors import PlanError


@dataclass(frozen=True)
class TextReader:
    """A text and its tokens, each with its position."""

    text: str

    token: ClassVar[re.Pattern[str]]
    """Group 1 is the token, without the space before it."""
    kind: ClassVar[str]
    hint: ClassVar[str]

    @cached_property
    def tokens(self) -> list[tuple[str, int]]:
        return [(match.group(1), match.start(1)) for match in self.token.finditer(self.text)]

    def place(self, at: int) -> int:
        """Returns the position of a token in the text; after the last token, the end of the text."""
        return self.tokens[at][1] if at < len(self.tokens) else len(self.text)

    def peek(self, at: int) -> str:
        return self.tokens[at][0] if at < len(self.tokens) else ""

    def expect(self, at: int, token: str, expected: str = "") -> int:
        if self.peek(at) != token:
            raise self.unexpected(at, expected or f"'{token}'")
        return at + 1

    def end(self, at: int) -> None:
        """Raises PlanError if anything is left."""
        if at < len(self.tokens):
            raise self.unexpected(at, f"the end of the {self.kind}")

    def unexpected(self, at: int, expected: str) -> PlanError:
        position = self.place(at)
        found = f"'{self.peek(at)}'" if at < len(self.tokens) else "the end"
        return PlanError(
            f"{self.kind} text is wrong at character {position + 1}: expected {expected}, found {found}",
            detail=f"  {self.text}\n  {' ' * position}^",
            hint=self.hint,
        )
