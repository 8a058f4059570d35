"""Describes the queries of a checkpoint: their texts, the columns that they read, and how queries differ.

A checkpoint belongs to one fingerprint, which shows that queries differ but not how. So the metadata also has the texts
of the queries and the columns that they read. Limit: the description only explains a refusal; the fingerprint decides.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anabranch.lang.expr import columns as of_expression
from anabranch.lang.schema import type_name
from anabranch.plan.query import is_subquery
from anabranch.plan.query_set import ALONE, QuerySet

MOST = 3
"""The maximum number of differences that are shown."""
_WORDS = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Written:
    """The queries that wrote a checkpoint."""

    queries: Mapping[str, str]
    """The text of each query by name, each after those that it reads."""
    late_filters: Sequence[str]
    """The deferred filters, as in `QuerySet.late_filters`."""

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Written:
        """Reads the metadata of a checkpoint; older metadata has only the text of one query without a name."""
        queries = metadata.get("queries")
        texts = queries if isinstance(queries, Mapping) else {ALONE: str(metadata.get("query", ""))}
        return cls(texts, tuple(metadata.get("late_filters", ())))

    def filters_of(self, name: str) -> list[str]:
        """Returns the deferred filters of one query."""
        label = f"{name}: " if name else ""
        return [each.removeprefix(label) for each in self.late_filters if each.startswith(label)]


def written(queries: QuerySet) -> dict[str, object]:
    """Returns the entries of the metadata that describe queries."""
    ordered = sorted(queries.members, key=lambda each: queries.levels[each.name])
    return {
        "query": queries.text,
        "queries": {each.name: each.query.text for each in ordered if not is_subquery(each.name)},
        "late_filters": list(queries.late_filters),
        "columns": columns_read(queries),
    }


def columns_read(queries: QuerySet) -> dict[str, str]:
    """Returns the columns of each stream and table that queries read, with their types."""
    found: dict[str, dict[str, str]] = {}
    for relation in queries.graph.relations:
        columns = found.setdefault(relation.stream, {})
        if not relation.is_table:
            columns[relation.event_time] = "event time"
        read = {field.name: field.type for field in relation.schema}
        expressions = [key.expression(relation.name) for key in queries.graph.keys_of([relation.name])]
        expressions += [] if relation.filter is None else [relation.filter]
        read |= {each.name: each.type for expression in expressions for each in of_expression(expression)}
        columns |= {name: type_name(type) for name, type in read.items() if name not in columns}
    return {
        stream: ", ".join(f"{name} {kind}" for name, kind in sorted(read.items())) for stream, read in found.items()
    }


def what_differs(found: Mapping[str, Any], queries: QuerySet) -> str:
    """Returns the difference between the queries of a checkpoint's metadata and the running ones."""
    was, now = str(found.get("query", "")), queries.text
    changes = _changes(was, now)
    if changes:
        more = f"\nand {len(changes) - MOST} more differences" if len(changes) > MOST else ""
        return "\n".join(changes[:MOST]) + more + f"\nit was written by: {was}"
    before = found.get("columns")
    if isinstance(before, Mapping):
        for stream, columns in columns_read(queries).items():
            if before.get(stream, columns) != columns:
                return f"the texts are equal, but of '{stream}' it reads {before[stream]}; this query reads {columns}"
    return f"the texts are equal; columns, types, event times or functions differ\nit was written by: {was}"


def _changes(was: str, now: str) -> list[str]:
    """Returns the differences between two texts, each with the words before it."""
    found, old_words, new_words = [], list(_WORDS.finditer(was)), list(_WORDS.finditer(now))
    matcher = difflib.SequenceMatcher(None, [word[0] for word in old_words], [word[0] for word in new_words], False)
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind == "equal":
            continue
        old, new, before = _written(old_words[a:b]), _written(new_words[c:d]), _written(old_words[max(0, a - 3) : a])
        place = f"after '{before}'" if before else "at the beginning"
        if not old:
            found.append(f"{place}: this query adds '{new}'")
        elif not new:
            found.append(f"{place}: this query lacks '{old}'")
        else:
            found.append(f"{place}: it has '{old}', this query '{new}'")
    return found


def _written(words: Sequence[re.Match[str]]) -> str:
    """Returns adjacent words of a text as they are written there, on one line."""
    return " ".join(words[0].string[words[0].start() : words[-1].end()].split()) if words else ""
