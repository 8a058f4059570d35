"""Converts key values written by users to the codes by which rows are assigned to slots.

Limit: only keys that are an axis of the grid have such a code.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from anabranch.adapt.schedule import Scheduled, ScheduledSplit, SplitRequest
from anabranch.engine.evaluate.codes import key_codes
from anabranch.errors import PlanError
from anabranch.lang.expr import Expr, columns
from anabranch.plan.join_graph import KeyClass
from anabranch.plan.query_set import QuerySet, partitioning_of


def scheduled(queries: QuerySet, moves: Iterable[Scheduled | SplitRequest]) -> tuple[Scheduled, ...]:
    """Returns the schedule with the codes of keys; raises a PlanError for an unknown key."""
    return tuple(
        ScheduledSplit(move.at_batch, *code_of(queries, move.value, move.key), move.over, move.unites, queries.uncut)
        if isinstance(move, SplitRequest)
        else move
        for move in moves
    )


def code_of(queries: QuerySet, value: Any, key: str | None = None) -> tuple[str, int]:
    """Returns the name of the code of a key, and the code of one of its values.

    `key` is an expression that the key compares, such as `a.k`; it is optional if there is only one key.
    """
    axes = partitioning_of(queries, 1).shares
    known = tuple(each for each in queries.graph.keys if each.name in axes)
    chosen = _chosen(known, key)
    try:
        values = pa.array([value]).cast(chosen.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
        raise PlanError(
            f"{value!r} is not a value of key '{chosen}'",
            detail=str(error),
            hint=f"its values are of type {chosen.type}",
        ) from error
    if values.null_count:
        raise PlanError(f"key '{chosen}' is never NULL in a join", hint="give a value")
    return chosen.name, int(key_codes(values, chosen.type)[0])


def _chosen(known: tuple[KeyClass, ...], key: str | None) -> KeyClass:
    texts = [str(expression) for each in known for _, expression in each.members]
    if not known:
        raise PlanError(
            "the query compares no keys that could be split", hint="rows are spread over slots by hash already"
        )
    if key is None:
        if len(known) > 1:
            raise PlanError("the query has several keys", hint=f"name one by key: {', '.join(texts)}")
        return known[0]
    for each in known:
        if key == each.name or any(key in _names(expression) for _, expression in each.members):
            return each
    raise PlanError(f"the query has no key '{key}'", hint=f"name one of {', '.join(texts)}")


def _names(expression: Expr) -> set[str]:
    """Returns the names of an expression of a key: its text and, if it has a single column, that of the column."""
    read = columns(expression)
    return {str(expression), *(str(column) for column in read if len(read) == 1)}
