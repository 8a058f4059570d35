"""The track of one plan: its joins and intermediate states, over base states that it shares and does not own.

The engine processes new rows one relation after another, in the order of the join graph. A relation's new rows pass
through every track and only then become findable in their base state. So several tracks can use the same base rows, and
each produces each result once.

Invariant: the states that a relation's rows enter are on their path from the leaf to the root, and the states that they
probe are off that path. So nothing that one turn inserts can be found in the same turn, and blocks can rise to the root
one by one: a step holds the blocks of one path, whatever the fan-out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from anabranch.engine.batch import Combinations
from anabranch.engine.compile import JoinProgram, compile_plan, entry
from anabranch.engine.expiry import out_of_reach
from anabranch.engine.meter import Meter, Size
from anabranch.engine.operators.inputs import InputWork, carried_columns, make_work
from anabranch.engine.operators.join import State, WindowJoin, checked, code_reader
from anabranch.engine.operators.residuals import Demanding
from anabranch.engine.state.intermediate import IntermediateState
from anabranch.engine.state.ring import Index
from anabranch.engine.tracks.protocol import Departure, PlanContext, not_changing
from anabranch.plan.content import Content
from anabranch.plan.difference import contents
from anabranch.plan.mesh import Plan
from anabranch.plan.physical import (
    InputOperator,
    JoinNode,
    Leaf,
    PhysicalPlan,
    Shared,
    input_operators,
    kept,
    leaves,
    plain_shape,
    shape,
    shared_parts,
)
from anabranch.plan.selections import deferred_thetas
from anabranch.plan.text import parse
from anabranch.stats.step import StepStatistics


@dataclass(frozen=True)
class Joining:
    """A join on the path from a relation to the root, and the input at which combinations arrive."""

    join: WindowJoin
    position: int
    makes: Content

    def blocks(self, found: Combinations) -> Iterator[Combinations]:
        """Yields the results of this stage for some combinations, in blocks."""
        return self.join.probe(self.position, found)

    def enter(self, found: Combinations) -> None:
        """Makes arriving combinations findable by the other inputs."""
        self.join.enter(self.position, found)


@dataclass(frozen=True)
class Working:
    """The step on that path where combinations pass an input operator, before they arrive at a join."""

    operator: InputWork
    makes: Content

    def blocks(self, found: Combinations) -> Iterator[Combinations]:
        yield self.operator.work(found)

    def enter(self, found: Combinations) -> None:
        """Does nothing: combinations are kept after the operator."""


Way = tuple[Joining | Working, ...]
"""The path of a relation's rows to the results."""


class PlanTrack:
    """The joins of one plan; `states` are intermediate states to take over, by content; the others start empty."""

    KIND = "plan"

    def __init__(
        self, context: PlanContext, plan: PhysicalPlan, states: Mapping[Content, IntermediateState] | None = None
    ) -> None:
        query = context.query
        self.context = context
        self.plan = plan
        self.leaving: Plan | None = None
        self.thetas = query.graph.thetas
        self.contents = contents(plan, self.thetas)
        self.shared = {part: context.shared[part] for part in shared_parts(plan)}
        rests = {part: join.common.rests[context.name] for part, join in self.shared.items()}
        self.entries = {part: entry(rest, query.graph, deferred_thetas(plan)) for part, rest in rests.items()}
        self.program = compile_plan(plan, query.graph, rests)
        self.bases = context.bases
        self.codes = code_reader(self.bases, query.graph)
        for name, base in self.bases.items():
            base.require(self.indexes(name))
        for part, join in self.shared.items():
            join.require(self.shared_indexes(part))
        self.intermediates: dict[str, IntermediateState] = {}
        number: int | None = None
        for i, inner in enumerate(kept(plan)):
            indexes = self.program.indexes[inner.shape]
            state = (states or {}).get(self.contents[inner.shape])
            if state is None:
                number = context.new_number() if number is None else number
                columns = carried_columns(inner, query)
                state = IntermediateState(context.arena, f"track{number}.state{i}", inner.relations, indexes, columns)
            else:
                state.require(indexes, self.codes)
            self.intermediates[inner.shape] = state
        self.operators = {inner.shape: self._operator(inner) for inner in input_operators(plan)}
        joins = {join.node.shape: self.join(join, context.meter) for join in self.program.joins}
        self._ways = {name: self.way_to_root(name, joins) for name in leaves(plan)}
        self._shared_ways = {part: self.way_to_root(part.relations[0], joins) for part in self.shared}

    def _operator(self, node: InputOperator) -> InputWork:
        context = self.context
        work = make_work(node, context.query, self.bases, context.owns)
        inside = tuple(residual for residual in context.residuals if residual.relation in node.relations)
        return Demanding(work, inside, self.bases) if inside else work

    @classmethod
    def reopened(
        cls, context: PlanContext, layout: Mapping[str, Any], known: dict[str, IntermediateState] | None = None
    ) -> PlanTrack:
        """Reopens the track of a layout; `known` are states, by name, that other tracks have reopened."""
        known = {} if known is None else known
        plan = parse(layout["plan"])
        made = contents(plan, context.query.graph.thetas)
        mine: dict[Content, IntermediateState] = {}
        for inner in kept(plan):
            found = layout["intermediates"][inner.shape]
            name = found["name"]
            if name not in known:
                columns = carried_columns(inner, context.query)
                known[name] = IntermediateState(context.arena, name, inner.relations, (), columns)
                known[name].reopen(found)
            mine[made[inner.shape]] = known[name]
        return cls(context, plan, mine)

    @property
    def held(self) -> Sequence[IntermediateState]:
        """Every intermediate state that the track needs."""
        return tuple(self.intermediates.values())

    def settled(self) -> Self:
        """Returns the track itself: no migration is running."""
        return self

    def aborted(self) -> Self:
        raise not_changing(self.plan)

    def departure(self) -> Departure:
        return Departure(self)

    def join(self, program: JoinProgram, meter: Meter, since: tuple[int, ...] = ()) -> WindowJoin:
        """Creates one join of the plan over this track's states."""
        inputs = tuple(self.state(child) for child in program.node.inputs)
        return WindowJoin(program, inputs, self.bases, self.codes, meter, since)

    def state(self, plan: PhysicalPlan) -> State:
        """Returns the state of an input of some join."""
        match plan:
            case Leaf(relation=name):
                return self.bases[name]
            case Shared():
                return self.shared[plan].state
        return self.intermediates[plan.shape]

    @property
    def states(self) -> dict[Content, IntermediateState]:
        """The intermediate states, by their content."""
        return {self.contents[inner.shape]: self.intermediates[inner.shape] for inner in kept(self.plan)}

    def way_to_root(self, relation: str, joins: Mapping[str, WindowJoin]) -> Way:
        """Returns the path of a relation's rows to the root, with these joins instead of the track's own."""
        return tuple(self._way(self.plan, relation, joins))

    def _way(self, plan: PhysicalPlan, relation: str, joins: Mapping[str, WindowJoin]) -> Iterator[Joining | Working]:
        makes = self.contents[shape(plan)]
        match plan:
            case Leaf() | Shared():
                return
            case InputOperator(input=below):
                yield from self._way(below, relation, joins)
                yield Working(self.operators[plan.shape], makes)
            case JoinNode(inputs=several):
                position = next(i for i, child in enumerate(several) if relation in child.relations)
                yield from self._way(several[position], relation, joins)
                yield Joining(joins[plan.shape], position, makes)

    def layout(self) -> dict[str, Any]:
        """Describes where the states are in the arena."""
        return {
            "kind": self.KIND,
            "plan": str(self.plan),
            "intermediates": {name: state.layout() for name, state in self.intermediates.items()},
        }

    def indexes(self, relation: str) -> tuple[Index, ...]:
        """The indexes of a base state that this plan probes; none if only a shared join probes it."""
        return self.program.indexes.get(relation, ())

    def shared_indexes(self, shared: Shared) -> tuple[Index, ...]:
        """The indexes of a shared join's state that this plan probes."""
        return self.program.indexes.get(shared.shape, ())

    def retain_indexes(self) -> None:
        """Releases every index of an intermediate state that this plan does not probe."""
        for name, state in self.intermediates.items():
            state.retain(self.program.indexes[name])

    def take(self, relation: str, found: Combinations, *, wanted: bool) -> Iterator[Combinations]:
        """Inserts new rows of a relation into every state on their path; yields what they finish, if wanted."""
        yield from rise(self._ways[relation], found, wanted=wanted)

    def take_shared(self, shared: Shared, found: Combinations, *, wanted: bool) -> Iterator[Combinations]:
        """Inserts new combinations of a shared join into every state on their path, like new rows of a relation."""
        left = checked(self.entries[shared], found, self.bases, self.context.meter)
        yield from rise(self._shared_ways[shared], left, wanted=wanted)

    def drop(self, floors: Mapping[str, int]) -> None:
        """Drops combinations that no future row can complete, and compacts states that have grown."""
        self.expire(floors)
        for name, operator in self.operators.items():
            state = self.intermediates[name]
            operator.compact(state, out_of_reach(floors, state.relations, self.context.query.pairwise)[0])

    def expire(self, floors: Mapping[str, int]) -> None:
        """Drops combinations that no future row can complete; a second track may share the states."""
        for inner in kept(self.plan):
            state = self.intermediates[inner.shape]
            lows = out_of_reach(floors, state.relations, self.context.query.pairwise)
            self.context.meter.dropped(plain_shape(inner), state.drop(*lows))

    def finish(self, beside: Mapping[str, Size]) -> StepStatistics:
        """Returns statistics of joins and states since the last call."""
        states = ((plain_shape(inner), self.intermediates[inner.shape]) for inner in kept(self.plan))
        sizes = {name: (state.ring.live, state.bytes) for name, state in states}
        return self.context.meter.finish({**sizes, **beside})


def rise(way: Way, found: Combinations, *, wanted: bool) -> Iterator[Combinations]:
    """Yields the results of combinations at the end of a path, after inserting them into every state on it."""
    if not way:
        if wanted:
            yield found
        return
    here, above = way[0], way[1:]
    if not above and not wanted:
        return
    for block in here.blocks(found):
        yield from rise(above, block, wanted=wanted)
        if above:
            above[0].enter(block)
