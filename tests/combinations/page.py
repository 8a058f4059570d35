"""The page of the table, `docs/combinations.md`: every pair of entries, and every refusal with its reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

from tests.combinations import table

PAGE = "docs/combinations.md"
_HEAD = """# Combinations

A query consists of features, and events change it while it runs. This page says for every pair of them whether the
results are exact: the multiset of the batch answer, whatever the cut into batches, the plan and the slots. `·` is
exact. A number is a refusal: an error names the pair, and nothing has changed. A number in brackets is a refusal of
some forms of the pair; all others are exact. `–` are values of one choice.

The table is data (`tests/combinations/table.py`) that the tests draw from: exact pairs are compared with an evaluator
that shares no code with the engine, in process and on Spark (`make test-all`), and every refusal is raised. On Spark,
300 schedules run in one session, with failures at the crash points and lost executors, and 20 with a driver in a
process of its own that is killed by `SIGKILL`. `make faults` draws combinations of three and more.
"""


def page() -> str:
    """Returns the text of the page."""
    features, events = list(table.FEATURES), list(table.EVENTS)
    parts = [_HEAD]
    parts.append("## Entries\n\n| | entry | meaning |\n|---|---|---|\n" + "\n".join(_entries()))
    parts.append("## Two features of a query\n\n" + _matrix(features, features))
    parts.append("## A feature and an event\n\n" + _matrix(events, features))
    parts.append(
        "## Two events, one soon after the other\n\n" + _matrix(events, events) + "\n\nAn event can also follow itself."
    )
    parts.append(
        "## Refusals\n\n| | error | reason | forms that are refused |\n|---|---|---|---|\n" + "\n".join(_rows())
    )
    parts.append("## What is not drawn\n\n| | why |\n|---|---|\n" + "\n".join(_not_drawn()))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _number(name: str) -> str:
    kinds = (("f", table.FEATURES), ("e", table.EVENTS))
    return next(f"{letter}{list(several).index(name) + 1}" for letter, several in kinds if name in several)


def _entries() -> Iterable[str]:
    for name, entry in table.ENTRIES.items():
        yield f"| {_number(name)} | {name} | {entry.meaning} |"


def _mark(refusal: table.Refusal) -> str:
    texts = list(dict.fromkeys(each.text for each in table.REFUSALS))
    number = texts.index(refusal.text) + 1
    return f"({number})" if refusal.forms else str(number)


def _cell(row: str, column: str) -> str:
    if row == column:
        return "" if row in table.FEATURES else "·"
    if table.is_one_choice(frozenset({row, column})):
        return "–"
    found = table.refusals(row, column)
    if not found:  # of what they need
        needed = combinations(sorted(table.closed([row, column])), 2)
        found = tuple(each for pair in needed for each in table.refusals(*pair) if not each.forms)
    return " ".join(dict.fromkeys(map(_mark, found))) or "·"


def _matrix(rows: Sequence[str], columns: Sequence[str]) -> str:
    head = f"| | | {' | '.join(map(_number, columns))} |\n|---|---|{'---|' * len(columns)}"
    lines = [f"| {_number(row)} | {row} | {' | '.join(_cell(row, column) for column in columns)} |" for row in rows]
    return "\n".join([head, *lines])


def _rows() -> Iterable[str]:
    for refusal in table.REFUSALS:
        forms = refusal.forms or "all"
        yield f"| {_mark(refusal)} | `{refusal.error.__name__}`: … {refusal.text} … | {refusal.reason} | {forms} |"


def _not_drawn() -> Iterable[str]:
    for name, reason in table.NOT_DRAWN.items():
        yield f"| {name} | {reason} |"
