"""A covering array: schedules in which every exact pair of the table occurs together.

Greedy and without chance: each schedule begins with the first pair that no schedule has, and takes the entries that
bring most pairs, as long as all its pairs are exact. Schedules stay small, so that queries still have results.
"""

from __future__ import annotations

from itertools import combinations

from tests.combinations import table

MOST_FEATURES, MOST_EVENTS = 5, 4
Pair = frozenset[str]
Schedule = tuple[frozenset[str], list[str]]


_REFUSED = {
    name: frozenset(other for refusal in table.REFUSALS for each in refusal.pairs if name in each for other in each)
    - {name}
    for name in table.ENTRIES
}


def exact_pairs() -> set[Pair]:
    """All pairs of the table that are exact in every form."""
    return {
        table.pair(one, other) for one, other in combinations(table.ENTRIES, 2) if is_exact(table.closed([one, other]))
    }


def is_exact(names: frozenset[str]) -> bool:
    """True if all pairs of the entries are exact in every form."""
    return not any(_REFUSED[name] & names for name in names) and not table.is_one_choice(names)


def covering() -> list[Schedule]:
    """Returns schedules with all exact pairs."""
    missing = exact_pairs()
    order = list(table.ENTRIES)
    found: list[Schedule] = []
    while missing:
        first = min(missing, key=lambda each: sorted(order.index(name) for name in each))
        chosen = table.closed(first)
        while (better := _next(chosen, missing)) is not None:
            chosen = better
        missing -= set(_pairs(chosen))
        events = [name for name in order if name in chosen and name in table.EVENTS]
        turned = len(found) % len(events) if events else 0
        found.append((chosen & table.FEATURES.keys(), events[turned:] + events[:turned]))
    return found


def _next(chosen: frozenset[str], missing: set[Pair]) -> frozenset[str] | None:
    """The entries with the one more that brings most pairs; None if none brings any."""
    best, most = None, 0
    for name in table.ENTRIES:
        if name in chosen or _REFUSED[name] & chosen:
            continue
        wider = table.closed([*chosen, name])
        if not _is_small(wider) or not is_exact(wider):
            continue
        gain = len(missing.intersection(_pairs(wider))) - len(missing.intersection(_pairs(chosen)))
        if gain > most:
            best, most = wider, gain
    return best


def _is_small(names: frozenset[str]) -> bool:
    features = names & table.FEATURES.keys()
    return len(features) <= MOST_FEATURES and len(names) - len(features) <= MOST_EVENTS


def _pairs(names: frozenset[str]) -> list[Pair]:
    return [table.pair(one, other) for one, other in combinations(sorted(names), 2)]
