"""Statistics: the interface through which optimizers read rates, selectivities and unit costs.

Statistics are given by the user, sampled from the first rows of the streams, or measured while the query runs. Each
kind is a `StatisticsView`, and `Layered` combines several views. `cost.estimates` provides defaults for unknown
numbers. Every number has a provenance for explanations.

Invariant: a view returns None for a number that it does not know. None is never zero: a rate of zero means that no row
arrives, None that the rate is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeAlias

from anabranch.errors import StatisticsError
from anabranch.lang.expr import own_functions
from anabranch.plan.join_graph import JoinGraph
from anabranch.settings.entries import LARGEST, Entry, suggestion

Provenance: TypeAlias = Literal["given", "sampled", "measured", "calibrated", "assumed"]
Numbers: TypeAlias = Mapping[str, float]
_SECTIONS = {
    "rates": ("rate", 0.0, LARGEST),
    "rows": ("number of rows", 0.0, LARGEST),
    "filters": ("selectivity", 0.0, 1.0),
    "selectivities": ("selectivity", 0.0, 1.0),
    "bytes": ("number of bytes", 0.0, LARGEST),
    "groups": ("number of groups", 1.0, LARGEST),
    "costs": ("cost", 0.0, LARGEST),
    "functions": ("number of seconds per row", 0.0, LARGEST),
    "predicates": ("number of seconds per row", 0.0, LARGEST),
}
"""The sections of a `stats:` block: the meaning and the bounds of their numbers."""


@dataclass(frozen=True)
class Known:
    """A number and its provenance."""

    value: float
    provenance: Provenance


@dataclass(frozen=True)
class KnownCosts:
    """Unit costs by name, and their provenance."""

    costs: Numbers
    provenance: Provenance


class StatisticsView(Protocol):
    """Read access to statistics; None means unknown."""

    def rate(self, relation: str, stream: str) -> Known | None:
        """Returns the rows per second of a stream, before the relation's filter."""
        ...

    def table_rows(self, relation: str, table: str) -> Known | None:
        """Returns the rows of a table, before the relation's filter."""
        ...

    def filter_selectivity(self, relation: str) -> Known | None:
        """Returns the fraction of a relation's rows that pass its filter."""
        ...

    def pair_selectivity(self, left: str, right: str) -> Known | None:
        """Returns the fraction of all pairs of rows of two relations that agree in their keys."""
        ...

    def predicate_selectivity(self, predicate: str) -> Known | None:
        """Returns the fraction of all combinations for which a predicate, by its text, is true."""
        ...

    def row_bytes(self, relation: str, stream: str) -> Known | None:
        """Returns the payload bytes of a row in a base state."""
        ...

    def number_of_groups(self, relations: Iterable[str]) -> Known | None:
        """Returns the number of distinct rows of the merged input of these relations at a boundary."""
        ...

    def unit_costs(self) -> KnownCosts | None:
        """Returns the costs of the engine's elementary operations."""
        ...

    def function_cost(self, name: str) -> Known | None:
        """Returns the seconds per row of a user-defined function."""
        ...

    def predicate_cost(self, predicate: str) -> Known | None:
        """Returns the seconds per row of checking a predicate, by its text."""
        ...


@dataclass(frozen=True)
class FixedStatistics:
    """Statistics as plain numbers: rates and row bytes by stream or relation, pairs by two relations, the rest by text.

    >>> FixedStatistics(rates={"orders": 20.0}).rate("o", "orders")
    Known(value=20.0, provenance='given')
    """

    rates: Numbers = field(default_factory=dict)
    filters: Numbers = field(default_factory=dict)
    selectivities: Numbers = field(default_factory=dict)
    """By a pair of relations such as 'a b', in either order, or by the text of a predicate."""
    bytes: Numbers = field(default_factory=dict)
    groups: Numbers = field(default_factory=dict)
    """By a relation such as 'a', or by several that are joined before they are merged, in any order."""
    costs: Numbers = field(default_factory=dict)
    """Unit costs by name; `cost.units` defines the names."""
    functions: Numbers = field(default_factory=dict)
    """Seconds per row of user-defined functions."""
    predicates: Numbers = field(default_factory=dict)
    """Seconds per row of predicates that joins check, by their text."""
    rows: Numbers = field(default_factory=dict)
    """By table or relation."""
    provenance: Provenance = "given"

    def __post_init__(self) -> None:
        for section in _SECTIONS:
            for name, value in getattr(self, section).items():
                _checked(section, Entry(f"stats.{section}.{name}", value, StatisticsError))
        seen: dict[frozenset[str], str] = {}
        for name, value in self.selectivities.items():
            pair = frozenset(name.split())
            earlier = seen.setdefault(pair, name)
            if len(pair) == 2 and earlier != name and self.selectivities[earlier] != value:
                raise StatisticsError(
                    f"entry 'stats.selectivities.{name}' contradicts 'stats.selectivities.{earlier}'",
                    detail=f"{value:g} and {self.selectivities[earlier]:g} are given for the same two relations",
                    hint="keep one of them",
                )

    @classmethod
    def from_mapping(cls, entries: Mapping[str, object]) -> FixedStatistics:
        """Reads a `stats:` block that is given as a mapping."""
        return cls.read(Entry("stats", entries))

    @classmethod
    def read(cls, block: Entry, *, provenance: Provenance = "given") -> FixedStatistics:
        """Reads a `stats:` block; raises StatisticsError with the name of a wrong entry and a valid alternative."""
        sections = replace(block, error=StatisticsError).mapping(" ".join(_SECTIONS))
        numbers = {
            section: {
                name: _checked(section, entry) for name, entry in sections[section].filled("write a number").items()
            }
            for section in sections
        }
        return cls(**numbers, provenance=provenance)

    def to_mapping(self) -> dict[str, dict[str, float]]:
        """Returns all numbers but the unit costs, as a `stats:` block."""
        sections = {name: dict(getattr(self, name)) for name in _SECTIONS if name != "costs"}
        return {name: entries for name, entries in sections.items() if entries}

    def check_names(self, graph: JoinGraph) -> None:
        """Rejects an entry for a stream, relation or predicate that the query does not have."""
        relations = set(graph.names)
        streams = relations | {relation.stream for relation in graph.relations}
        tables = {name for each in graph.relations if each.is_table for name in (each.name, each.stream)}
        predicates = {str(theta) for theta in graph.thetas}
        for section, entries, known in (
            ("rates", self.rates, streams),
            ("rows", self.rows, tables),
            ("bytes", self.bytes, streams),
            ("filters", self.filters, relations),
        ):
            for name in entries:
                if name not in known:
                    raise _unknown(section, name, known)
        called = {own.name for theta in graph.thetas for own in own_functions(theta.predicate)}
        for name in self.functions:
            if name not in called:
                raise _unknown("functions", name, called)
        for name in self.predicates:
            if name not in predicates:
                raise _unknown("predicates", name, predicates)
        for name in self.groups:
            if not set(name.split()) <= relations:
                raise _unknown("groups", name, relations)
        for name in self.selectivities:
            if name not in predicates:
                words = name.split()
                if len(words) != 2 or words[0] == words[1] or not set(words) <= relations:
                    raise _unknown("selectivities", name, predicates | {f"{a} {b}" for a, b in _pairs(graph.names)})

    def rate(self, relation: str, stream: str) -> Known | None:
        return self._known(self.rates, relation, stream)

    def table_rows(self, relation: str, table: str) -> Known | None:
        return self._known(self.rows, relation, table)

    def filter_selectivity(self, relation: str) -> Known | None:
        return self._known(self.filters, relation)

    def pair_selectivity(self, left: str, right: str) -> Known | None:
        return self._known(self.selectivities, f"{left} {right}", f"{right} {left}")

    def predicate_selectivity(self, predicate: str) -> Known | None:
        return self._known(self.selectivities, predicate)

    def row_bytes(self, relation: str, stream: str) -> Known | None:
        return self._known(self.bytes, relation, stream)

    def number_of_groups(self, relations: Iterable[str]) -> Known | None:
        wanted = sorted(relations)
        return self._known(self.groups, *(name for name in self.groups if sorted(name.split()) == wanted))

    def unit_costs(self) -> KnownCosts | None:
        return KnownCosts(self.costs, self.provenance) if self.costs else None

    def function_cost(self, name: str) -> Known | None:
        return self._known(self.functions, name)

    def predicate_cost(self, predicate: str) -> Known | None:
        return self._known(self.predicates, predicate)

    def _known(self, entries: Numbers, *names: str) -> Known | None:
        for name in names:
            if name in entries:
                return Known(float(entries[name]), self.provenance)
        return None


@dataclass(frozen=True)
class Layered:
    """Several views combined; the first view that knows a number returns it."""

    views: tuple[StatisticsView, ...]

    def rate(self, relation: str, stream: str) -> Known | None:
        return next((k for view in self.views if (k := view.rate(relation, stream)) is not None), None)

    def table_rows(self, relation: str, table: str) -> Known | None:
        return next((k for view in self.views if (k := view.table_rows(relation, table)) is not None), None)

    def filter_selectivity(self, relation: str) -> Known | None:
        return next((k for view in self.views if (k := view.filter_selectivity(relation)) is not None), None)

    def pair_selectivity(self, left: str, right: str) -> Known | None:
        return next((k for view in self.views if (k := view.pair_selectivity(left, right)) is not None), None)

    def predicate_selectivity(self, predicate: str) -> Known | None:
        return next((k for view in self.views if (k := view.predicate_selectivity(predicate)) is not None), None)

    def row_bytes(self, relation: str, stream: str) -> Known | None:
        return next((k for view in self.views if (k := view.row_bytes(relation, stream)) is not None), None)

    def number_of_groups(self, relations: Iterable[str]) -> Known | None:
        wanted = tuple(relations)
        return next((k for view in self.views if (k := view.number_of_groups(wanted)) is not None), None)

    def unit_costs(self) -> KnownCosts | None:
        return next((costs for view in self.views if (costs := view.unit_costs()) is not None), None)

    def function_cost(self, name: str) -> Known | None:
        return next((k for view in self.views if (k := view.function_cost(name)) is not None), None)

    def predicate_cost(self, predicate: str) -> Known | None:
        return next((k for view in self.views if (k := view.predicate_cost(predicate)) is not None), None)


NOTHING_KNOWN = FixedStatistics()


def _checked(section: str, entry: Entry) -> float:
    kind, low, high = _SECTIONS[section]
    wanted = f"between {low:g} and {high:g}" if high < LARGEST else f"of {low:g} or more"
    return entry.number(low, high, hint=f"write a {kind} {wanted}")


def _unknown(section: str, name: str, known: set[str]) -> StatisticsError:
    return StatisticsError(
        f"entry 'stats.{section}.{name}' names something the query does not have", hint=suggestion(name, sorted(known))
    )


def _pairs(names: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(left, right) for i, left in enumerate(names) for right in names[i + 1 :]]
