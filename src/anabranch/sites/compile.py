"""Compiles a planned landscape into runnable operators.

Every operator becomes a query in normal form over derived relations. The rows of a view have columns `s<i>_<name>` for
column `name` of slot i, and `t<i>` for the event time of the row in slot i. A reader's filter, columns and ranges
become the shape of its link, applied at its producer. A grouped query is aggregated at its last join if its groups are
fewer bytes than their rows, else at its sink. A query with outer joins or tables is one operator at its sink, which
reads the gates of its streams. A join whose only reader is a join at the same site is fused into it: the
site then runs one join of several inputs, whose plan it may choose and change.

Invariant: the operators together compute every query of the landscape. The landscape is tightened first, so a producer
emits exactly the union of what its readers take, and an operator applies no filter itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from anabranch.errors import InvariantBroken, TopologyError
from anabranch.lang.catalog import Catalog
from anabranch.lang.expr import Column, Expr, columns, conjunction, transform
from anabranch.lang.schema import TIMESTAMP, Field, Schema
from anabranch.lang.window import FOREVER, Window
from anabranch.place.check import complaints
from anabranch.place.grouping import groups_bytes, is_grouped_early
from anabranch.place.landscape import Landscape, Operator, view_bytes
from anabranch.place.removal import in_order, tightened
from anabranch.place.selection import to_filter
from anabranch.place.view import Slot, View, needs
from anabranch.plan.bands import thetas_with_bands
from anabranch.plan.join_graph import JoinGraph, KeyClass, Part, Relation
from anabranch.plan.logical import BOUNDARY, Output
from anabranch.plan.query import Grouping, Query
from anabranch.plan.renaming import rewritten
from anabranch.run.links.feed import NEWEST
from anabranch.run.links.shape import Shape
from anabranch.sites.operators import (
    DELIVERY,
    GATE,
    GROUPS,
    JOIN,
    RELAY,
    InputSpec,
    OperatorSpec,
    PlannedFlow,
    Program,
    operator_name,
)


def compile_program(landscape: Landscape, catalog: Catalog) -> Program:
    """Returns the operators of a landscape; omits gates of streams without readers."""
    return _Compiler(tightened(landscape), catalog).program()


@dataclass(frozen=True)
class _Taken:
    """An input after fusion: the producer's slots by the operator's slots."""

    producer: str
    view: View
    slots: tuple[int, ...]


class _Compiler:
    def __init__(self, landscape: Landscape, catalog: Catalog) -> None:
        self.landscape = landscape
        self.catalog = catalog
        for query in landscape.queries.values():
            if wrong := complaints(landscape, query):
                raise InvariantBroken(f"the placement does not compute query '{query.name}'", detail=wrong[0])
        self.readers: dict[str, list[Operator]] = {name: [] for name in landscape.operators}
        for operator in landscape.operators.values():
            for taken in operator.inputs:
                self.readers[taken.producer].append(operator)
        self.names: dict[str, str] = {}
        """The compiled operator that offers the view of each landscape operator."""
        self.made: dict[str, OperatorSpec] = {}
        self.views: dict[tuple[str, str], View] = {}
        """The views that are taken, by producer and shape; groups have none."""

    def program(self) -> Program:
        for name in in_order(self.landscape):
            operator = self.landscape.operators[name]
            if operator.is_base:
                if self.readers[name]:
                    self._add(name, self._gate(operator))
            elif operator.is_join:
                if not self._is_fused(operator):
                    self._add(name, self._join(operator, JOIN))
            elif operator.is_whole:
                self._add(name, self._whole(operator))
            elif name in self.landscape.queries:
                self._add(name, self._delivery(operator))
            else:
                self._add(name, self._join(operator, RELAY))
        return Program(self.made, self._flows())

    def _flows(self) -> dict[tuple[str, str], PlannedFlow]:
        topology, statistics = self.landscape.topology, self.landscape.statistics
        found = {}
        for name, spec in self.made.items():
            for taken in spec.inputs:
                ends = (topology.position(self.made[taken.producer].site), topology.position(spec.site))
                view = self.views.get((taken.producer, str(taken.shape)))
                if view is None:
                    volume = groups_bytes(self.landscape.queries[spec.serves].planned, statistics)
                else:
                    volume = view_bytes(view, statistics)
                found[name, taken.stream] = PlannedFlow(volume, topology.distance(*ends), view)
        return found

    def _add(self, name: str, spec: OperatorSpec) -> None:
        self._make(spec)
        self.names[name] = spec.name

    def _make(self, spec: OperatorSpec) -> None:
        if spec.name in self.made:
            raise TopologyError(
                f"two queries have operators with the name '{spec.name}' in files",
                hint="give one of them a name that differs in its letters or digits",
            )
        self.made[spec.name] = spec

    def _is_fused(self, operator: Operator) -> bool:
        """Returns True if the operator's only reader is a join at the same site."""
        readers = self.readers[operator.name]
        return len(readers) == 1 and readers[0].is_join and readers[0].site == operator.site

    def _site(self, operator: Operator) -> str:
        return self.landscape.topology.sites[operator.site].name

    # --- kinds of operators -------------------------------------------------------------------------------------------

    def _gate(self, operator: Operator) -> OperatorSpec:
        (slot,) = operator.view.slots
        stream = self.catalog.find(slot.stream)
        assert stream is not None, slot.stream
        relation = Relation("r", stream.name, stream.schema, stream.event_time, Window(0), disorder=stream.disorder)
        outputs = [Output(_value(0, field.name), Column("r", field.name, field.type)) for field in stream.schema]
        time = stream.schema.find(stream.event_time)
        assert time is not None
        outputs.append(Output(_time(0), Column("r", time.name, time.type, nullable=False)))
        query = Query(f"gate of {stream.name}", JoinGraph((relation,)), tuple(outputs))
        site = self._site(operator)
        name = operator_name(f"gate {stream.name}", site, query.fingerprint)
        return OperatorSpec(name, site, GATE, query, serves=stream.name.lower())

    def _join(self, operator: Operator, kind: str) -> OperatorSpec:
        inputs = self._inputs(operator)
        ranges = {slot: _range(each) for slot, each in enumerate(operator.view.slots)}
        placed, relations, specs = self._relations(inputs, ranges)
        outputs = []
        for number, slot in enumerate(operator.view.slots):
            relation, own = placed[number]
            outputs += [
                Output(_value(number, column), self._column(slot, column, relation, own))
                for column in sorted(slot.columns)
            ]
            outputs.append(Output(_time(number), Column(relation, _time(own), self._time_type(slot), nullable=False)))
        query = self._query(str(operator.view), operator.view, inputs, placed, relations, outputs, None)
        site = self._site(operator)
        name = operator_name(f"{kind} {operator.name}", site, query.fingerprint, [spec.shape for spec in specs])
        return OperatorSpec(name, site, kind, query, specs)

    def _delivery(self, operator: Operator) -> OperatorSpec:
        wanted = self.landscape.queries[operator.name]
        need = needs(wanted.query)[-1]
        inputs = self._inputs(operator)
        graph = wanted.query.graph
        ranges = {slot: _range(each) for slot, each in enumerate(need.view.slots)}
        placed, relations, specs = self._relations(inputs, ranges)
        slots = {graph.relations[index].name: slot for slot, index in enumerate(need.relations)}

        def rebound(expression: Expr) -> Expr:
            def change(node: Expr) -> Expr:
                if not isinstance(node, Column) or node.relation not in slots:
                    return node
                relation, own = placed[slots[node.relation]]
                return replace(node, relation=relation, name=_value(own, node.name))

            return transform(expression, change)

        outputs = [Output(each.name, rebound(each.expression)) for each in wanted.query.outputs]
        grouping = wanted.query.grouping
        if grouping is not None:
            keys = tuple(rebound(key) for key in grouping.keys)
            aggregates = tuple(
                replace(
                    a,
                    argument=None if a.argument is None else rebound(a.argument),
                    others=tuple(rebound(other) for other in a.others),
                )
                for a in grouping.aggregates
            )
            grouping = replace(grouping, keys=keys, aggregates=aggregates)
            # Always a separate operator: it moves with the join, while the delivery stays with its sink.
            is_early = is_grouped_early(wanted.query, self.landscape.statistics)
            site = self._site(self.landscape.operators[inputs[0].producer] if is_early else operator)
            named = [Output(_value(0, each.name), each.expression) for each in outputs]
            named.append(Output(_time(0), BOUNDARY))
            query = self._query(wanted.query.text, need.view, inputs, placed, relations, named, grouping)
            name = operator_name(f"groups {operator.name}", site, query.fingerprint, [spec.shape for spec in specs])
            self._make(OperatorSpec(name, site, GROUPS, query, specs))
            return self._delivery_of_groups(operator, wanted.query, name)
        query = self._query(wanted.query.text, need.view, inputs, placed, relations, outputs, None)
        return self._delivering(operator, query, specs)

    def _whole(self, operator: Operator) -> OperatorSpec:
        """Returns the delivery of a query that runs at one site; groups are an operator of their own."""
        wanted = self.landscape.queries[operator.name]
        streams = {relation.name: number for number, relation in enumerate(wanted.query.whole.streamed)}
        ranges = {number: _range(slot) for number, slot in enumerate(operator.view.slots)}
        _, relations, specs = self._relations(self._inputs(operator), ranges)

        def over_gates(expression: Expr) -> Expr:
            def change(node: Expr) -> Expr:
                if isinstance(node, Column) and node.relation in streams:
                    return replace(node, name=_value(0, node.name))
                return node

            return transform(expression, change)

        def at_gate(relation: Relation) -> Relation:
            return relation if relation.is_table else replace(relations[streams[relation.name]], name=relation.name)

        query = rewritten(wanted.query, over_gates, at_gate)
        if query.grouping is None:
            return self._delivering(operator, query, specs)
        outputs = [Output(_value(0, each.name), each.expression) for each in query.outputs]
        query = replace(query, outputs=(*outputs, Output(_time(0), BOUNDARY)))
        site = self._site(operator)
        name = operator_name(f"groups {operator.name}", site, query.fingerprint, [spec.shape for spec in specs])
        self._make(OperatorSpec(name, site, GROUPS, query, specs))
        return self._delivery_of_groups(operator, wanted.query, name)

    def _delivery_of_groups(self, operator: Operator, query: Query, groups: str) -> OperatorSpec:
        """Returns the delivery of groups that another site has computed."""
        fields = [Field(_value(0, field.name), field.type, field.nullable) for field in query.schema]
        schema = Schema((*fields, Field(_time(0), BOUNDARY.type, nullable=False)))
        # A group has one instant, and nothing is joined with it.
        parts = (Part(_time(0), 0),)
        relation = Relation("in0", "in0", schema, NEWEST, Window(0), parts=parts)
        outputs = tuple(
            Output(field.name, Column("in0", _value(0, field.name), field.type, field.nullable))
            for field in query.schema
        )
        taken = InputSpec("in0", groups, Shape(schema.names, parts, None), schema)
        return self._delivering(operator, Query(query.text, JoinGraph((relation,)), outputs), (taken,))

    def _delivering(self, operator: Operator, query: Query, inputs: tuple[InputSpec, ...]) -> OperatorSpec:
        site = self._site(operator)
        name = operator_name(f"query {operator.name}", site, query.fingerprint)
        return OperatorSpec(name, site, DELIVERY, query, inputs, serves=operator.name)

    # --- inputs -------------------------------------------------------------------------------------------------------

    def _inputs(self, operator: Operator) -> list[_Taken]:
        """Returns the inputs of an operator, including those of joins fused into it."""
        found = []
        for taken in operator.inputs:
            producer = self.landscape.operators[taken.producer]
            if producer.is_join and operator.is_join and self._is_fused(producer):
                found += [
                    _Taken(below.producer, below.view, tuple(taken.slots[slot] for slot in below.slots))
                    for below in self._inputs(producer)
                ]
            else:
                found.append(_Taken(producer.name, taken.view, taken.slots))
        return found

    def _relations(
        self, inputs: list[_Taken], ranges: Mapping[int, int]
    ) -> tuple[dict[int, tuple[str, int]], list[Relation], tuple[InputSpec, ...]]:
        """Returns a relation per input, and the relation and producer slot of each of the operator's slots."""
        placed: dict[int, tuple[str, int]] = {}
        relations, specs = [], []
        for number, taken in enumerate(inputs):
            name = f"in{number}"
            fields, parts = [], []
            for own, slot in enumerate(taken.view.slots):
                placed[taken.slots[own]] = name, own
                fields += [self._field(slot, column, own) for column in sorted(slot.columns)]
                fields.append(Field(_time(own), self._time_type(slot), nullable=False))
                parts.append(Part(_time(own), ranges[taken.slots[own]]))
            window = Window(min(part.range for part in parts))
            relations.append(Relation(name, name, Schema(tuple(fields)), NEWEST, window, parts=tuple(parts)))
            producer, shape = self.names[taken.producer], self._shape(taken, fields)
            self.views[producer, str(shape)] = taken.view
            specs.append(InputSpec(name, producer, shape, Schema(tuple(fields))))
        return placed, relations, tuple(specs)

    def _shape(self, taken: _Taken, fields: list[Field]) -> Shape:
        offered = self.landscape.operators[taken.producer].view
        filters: list[Expr] = []
        for own, (slot, made) in enumerate(zip(taken.view.slots, offered.slots, strict=True)):
            condition = to_filter(slot.selection) if slot.selection != made.selection else None
            if condition is not None:
                filters.append(_over(condition, "", own))
        parts = tuple(Part(_time(own), _range(slot)) for own, slot in enumerate(taken.view.slots))
        return Shape(tuple(field.name for field in fields), parts, conjunction(tuple(filters)))

    def _query(
        self,
        text: str,
        view: View,
        inputs: list[_Taken],
        placed: Mapping[int, tuple[str, int]],
        relations: list[Relation],
        outputs: list[Output],
        grouping: Grouping | None,
    ) -> Query:
        checked = {predicate.moved(taken.slots) for taken in inputs for predicate in taken.view.predicates}
        keys: list[KeyClass] = []
        thetas: list[Expr] = []
        # Predicates that can fail come after those that may guard them.
        for predicate in sorted(view.predicates - checked, key=lambda each: (each.can_fail, str(each))):
            if predicate.is_equality:
                members: dict[str, Expr] = {}
                for position, expression in zip(predicate.positions, predicate.expressions, strict=True):
                    relation, own = placed[position]
                    members.setdefault(relation, _over(expression, relation, own))
                if len(members) > 1:
                    kind = next(iter(members.values())).type
                    keys.append(KeyClass(f"k{len(keys)}", tuple(members.items()), kind))
            else:
                where = {f"${number}": placed[position] for number, position in enumerate(predicate.positions)}
                thetas.append(transform(predicate.expressions[0], partial(_placed, where)))
        readers = [output.expression for output in outputs] if grouping is None else [*grouping.keys]
        if grouping is not None:
            readers += [argument for a in grouping.aggregates for argument in a.arguments]
        readers += thetas
        readers += [expression for key in keys if not key.is_exact for _, expression in key.members]
        needed = {(column.relation, column.name) for reader in readers for column in columns(reader)}
        kept = tuple(
            replace(
                relation,
                schema=relation.schema.only(
                    frozenset(
                        field.name
                        for field in relation.schema
                        if (relation.name, field.name) in needed or field.name in {part.time for part in relation.parts}
                    )
                ),
            )
            for relation in relations
        )
        return Query(text, JoinGraph(kept, tuple(keys), thetas_with_bands(thetas)), tuple(outputs), grouping)

    # --- columns ------------------------------------------------------------------------------------------------------

    def _declared(self, slot: Slot, column: str) -> Field:
        stream = self.catalog.find(slot.stream)
        field = stream.schema.find(column) if stream is not None else None
        if field is None:
            raise TopologyError(f"stream '{slot.stream}' has no column '{column}'")
        return field

    def _field(self, slot: Slot, column: str, own: int) -> Field:
        declared = self._declared(slot, column)
        return Field(_value(own, declared.name), declared.type, declared.nullable)

    def _column(self, slot: Slot, column: str, relation: str, own: int) -> Column:
        declared = self._declared(slot, column)
        return Column(relation, _value(own, declared.name), declared.type, declared.nullable)

    def _time_type(self, slot: Slot) -> object:
        stream = self.catalog.find(slot.stream)
        field = stream.schema.find(stream.event_time) if stream is not None else None
        return TIMESTAMP if field is None else field.type


def _value(slot: int, column: str) -> str:
    return f"s{slot}_{column}"


def _time(slot: int) -> str:
    return f"t{slot}"


def _range(slot: Slot) -> int:
    return FOREVER if slot.range is None else slot.range


def _over(expression: Expr, relation: str, slot: int) -> Expr:
    """Rewrites an expression over a stream's columns to the columns of a slot."""

    def change(node: Expr) -> Expr:
        return replace(node, relation=relation, name=_value(slot, node.name)) if isinstance(node, Column) else node

    return transform(expression, change)


def _placed(where: Mapping[str, tuple[str, int]], node: Expr) -> Expr:
    if not isinstance(node, Column):
        return node
    relation, own = where[node.relation]
    return replace(node, relation=relation, name=_value(own, node.name))
