"""The page of the table, `docs/combinations.md`: every pair of entries, and every refusal with its reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from string import ascii_uppercase

from tests.combinations import table

PAGE = "docs/combinations.md"
_HEAD = """# Combinations

A query consists of features, and events change it while it runs. This page says for every pair of them whether the
results are exact: the multiset of the batch answer, whatever the cut into batches, the plan and the slots. `·` is
exact. A letter is a refusal: an error names the pair, and nothing has changed. A small letter is a refusal of some
forms of the pair; all others are exact. `–` are values of one choice.

The table is data (`tests/combinations/table.py`) that the tests draw from: exact pairs are compared with an evaluator
that shares no code with the engine, in process, and every refusal is raised. The replay of the schedules on Spark
(`test_on_spark.py`) does not pass yet. `make faults` draws combinations of three and more.
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
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _number(name: str) -> str:
    kinds = (("f", table.FEATURES), ("e", table.EVENTS))
    return next(f"{letter}{list(several).index(name) + 1}" for letter, several in kinds if name in several)


def _entries() -> Iterable[str]:
    for name, entry in table.ENTRIES.items():
        yield f"| {_number(name)} | {name} | {entry.meaning} |"


def _letter(refusal: table.Refusal) -> str:
    texts = list(dict.fromkeys(each.text for each in table.REFUSALS))
    letter = ascii_uppercase[texts.index(refusal.text)]
    return letter.lower() if refusal.forms else letter


def _cell(row: str, column: str) -> str:
    if row == column:
        return "" if row in table.FEATURES else "·"
    if table.is_one_choice(frozenset({row, column})):
        return "–"
    found = table.refusals(row, column)
    return "".join(dict.fromkeys(map(_letter, found))) or "·"


def _matrix(rows: Sequence[str], columns: Sequence[str]) -> str:
    head = f"| | | {' | '.join(map(_number, columns))} |\n|---|---|{'---|' * len(columns)}"
    lines = [f"| {_number(row)} | {row} | {' | '.join(_cell(row, column) for column in columns)} |" for row in rows]
    return "\n".join([head, *lines])


def _rows() -> Iterable[str]:
    for refusal in table.REFUSALS:
        forms = refusal.forms or "all"
        yield f"| {_letter(refusal)} | `{refusal.error.__name__}`: … {refusal.text} … | {refusal.reason} | {forms} |"
