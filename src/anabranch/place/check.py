"""Verifies that the running operators compute each query, by following a delivery back to its sources."""

from __future__ import annotations

from dataclasses import replace

from anabranch.place.landscape import Landscape, Operator, SinkQuery
from anabranch.place.view import Predicate, Slot, needs
from anabranch.place.whole import whole_view


def complaints(landscape: Landscape, query: SinkQuery) -> tuple[str, ...]:
    """Lists the reasons why the running operators do not compute the query; empty if they do.

    Follows the delivery's inputs to the base sources. Every producer must cover the input that reads it, every join
    must produce exactly its view, and the delivery's view must be the query's join graph.
    """
    found: list[str] = []
    delivery = landscape.operators.get(query.name)
    wanted = whole_view(query.query) if query.is_whole else needs(query.query)[-1].view
    if delivery is None:
        return (f"nothing is delivered for query '{query.name}'",)
    if landscape.topology.sites[delivery.site].name != query.sink:
        found.append(f"query '{query.name}' is delivered to another site than '{query.sink}'")
    if delivery.view != wanted:
        found.append(f"query '{query.name}' is delivered '{delivery.view}' instead of '{wanted}'")
    if landscape.is_slow(query):
        found.append(f"query '{query.name}' has a latency above its limit of {query.max_latency:g} ms")
    _follow(landscape, delivery, found, ())
    return tuple(found)


def _follow(landscape: Landscape, operator: Operator, found: list[str], above: tuple[str, ...]) -> None:
    if operator.name in above:
        found.append(f"operator '{operator.name}' feeds itself")
        return
    if operator.is_base:
        return
    slots: dict[int, Slot] = {}
    checked = set()
    for taken in operator.inputs:
        producer = landscape.operators.get(taken.producer)
        if producer is None:
            found.append(f"operator '{operator.name}' reads '{taken.producer}', which does not run")
            continue
        if producer.view.signature != taken.view.signature:
            found.append(f"operator '{operator.name}' reads another join than '{producer.name}' makes")
        elif not producer.view.covers(taken.view):
            found.append(f"'{producer.name}' holds back rows or columns that '{operator.name}' needs from it")
        if set(taken.slots) & set(slots):
            found.append(f"operator '{operator.name}' reads one stream from two inputs")
        slots |= dict(zip(taken.slots, taken.view.slots, strict=True))
        checked |= {predicate.moved(taken.slots) for predicate in taken.view.predicates}
        _follow(landscape, producer, found, (*above, operator.name))
    if sorted(slots) != list(range(len(operator.view.slots))):
        found.append(f"operator '{operator.name}' does not read all its streams")
        return
    for position, slot in enumerate(operator.view.slots):
        have = slots[position]
        if have.stream != slot.stream or not replace(have, columns=have.columns | slot.columns).covers(slot):
            found.append(f"operator '{operator.name}' offers more of '{slot.stream}' than it reads")
        elif not slot.columns <= have.columns:
            found.append(f"operator '{operator.name}' offers columns of '{slot.stream}' that it does not read")
    stray = [p for p in checked if not any(_contains(whole, p) for whole in operator.view.predicates)]
    if stray:
        found.append(f"operator '{operator.name}' reads rows that a foreign predicate '{stray[0]}' has filtered")
    for predicate in operator.view.predicates - checked:
        for position, reads in zip(predicate.positions, predicate.reads, strict=True):
            if not reads <= slots[position].columns:
                found.append(
                    f"operator '{operator.name}' cannot check '{predicate}' without {', '.join(sorted(reads))}"
                )


def _contains(whole: Predicate, part: Predicate) -> bool:
    """Returns True if the part is the whole predicate, or an equality among some of its members."""
    if not whole.is_equality or not part.is_equality:
        return bool(whole == part)
    members = set(zip(whole.positions, whole.text.split(" = "), strict=True))
    return set(zip(part.positions, part.text.split(" = "), strict=True)) <= members
