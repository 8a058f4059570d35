"""Removes a query: removes the operators that served only it, and narrows those that were widened for it.

Visits readers before producers. Each operator then offers the union of the views that its readers take, and takes from
its producers only that: those filters and windows, its columns, and the columns of its join predicates. Sources always
offer everything, and a delivery always keeps its query's view. A relay is removed with its last reader at another site.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import reduce

from anabranch.place.landscape import Input, Landscape, Operator, view_bytes
from anabranch.place.view import View


def removed(landscape: Landscape, query: str) -> Landscape:
    """Removes a query; joins and relays with other readers remain until those are removed too."""
    queries = {name: one for name, one in landscape.queries.items() if name != query}
    return tightened(replace(landscape, queries=queries))


def tightened(landscape: Landscape) -> Landscape:
    """Removes operators without readers, and narrows every filter, window and row to the needs of the readers."""
    kept: dict[str, Operator] = {}
    asked: dict[str, list[View]] = defaultdict(list)
    for name in reversed(in_order(landscape)):
        operator = landscape.operators[name]
        if not operator.is_base and name not in landscape.queries:
            if name not in asked:
                continue
            operator = _narrowed(landscape, operator, reduce(View.union, asked[name]))
        for taken in operator.inputs:
            asked[taken.producer].append(taken.view)
        kept[name] = operator
    operators = {name: kept[name] for name in landscape.operators if name in kept}
    return _without_idle_relays(replace(landscape, operators=operators))


def _without_idle_relays(landscape: Landscape) -> Landscape:
    """Removes relays whose only reader is at their site: it reads their producer instead, over the same path."""
    readers: dict[str, list[Operator]] = defaultdict(list)
    for operator in landscape.operators.values():
        for taken in operator.inputs:
            readers[taken.producer].append(operator)
    idle = {
        name: operator.inputs[0].producer
        for name, operator in landscape.operators.items()
        if len(operator.inputs) == 1
        and name not in landscape.queries
        and [reader.site for reader in readers[name]] == [operator.site]
    }
    return landscape.reading(idle) if idle else landscape


def _narrowed(landscape: Landscape, operator: Operator, view: View) -> Operator:
    """Narrows an operator to a view, and its inputs to what that view needs."""
    if view == operator.view:
        return operator
    checked = {predicate.moved(taken.slots) for taken in operator.inputs for predicate in taken.view.predicates}
    columns = [set(slot.columns) for slot in view.slots]
    for predicate in view.predicates - checked:
        for position, reads in zip(predicate.positions, predicate.reads, strict=True):
            columns[position] |= reads
    inputs = []
    for taken in operator.inputs:
        slots = tuple(replace(view.slots[slot], columns=frozenset(columns[slot])) for slot in taken.slots)
        wanted = View(slots, taken.view.predicates)
        inputs.append(Input(taken.producer, wanted, taken.slots, view_bytes(wanted, landscape.statistics)))
    return replace(operator, view=view, inputs=tuple(inputs))


def in_order(landscape: Landscape) -> list[str]:
    """Sorts operators, producers before their readers."""
    found: dict[str, None] = {}

    def visit(name: str) -> None:
        if name not in found:
            for taken in landscape.operators[name].inputs:
                visit(taken.producer)
            found[name] = None

    for name in landscape.operators:
        visit(name)
    return list(found)
