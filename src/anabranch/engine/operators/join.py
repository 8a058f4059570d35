"""The n-way window join.

Invariant: new rows are processed one relation after another. At an input of the join, they probe the states of all the
other inputs (which already contain the new rows of earlier relations) and then enter the state of their own. Of the new
rows of a result exactly one is processed last, and that one finds all the others. So each result is produced once,
whatever arrives together.

A probe works on blocks, depth first along the probe order, so the memory of a step is bounded by the blocks in progress
and not by the fan-out. Matches are row numbers; columns are read only by the checks that need them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from time import perf_counter

import numpy as np
import pyarrow as pa

from anabranch.engine import kernels
from anabranch.engine.batch import Combinations
from anabranch.engine.compile import Entry, JoinProgram, KeyCheck, Probe, compared_by
from anabranch.engine.evaluate.codes import equal_values
from anabranch.engine.evaluate.expression import evaluate, evaluate_mask
from anabranch.engine.kernels import BoolArray, Int64Array
from anabranch.engine.meter import Meter
from anabranch.engine.state.base import BaseState, combined
from anabranch.engine.state.intermediate import CodeReader, IntermediateState
from anabranch.engine.state.ring import Matches
from anabranch.engine.state.texts import TextColumn
from anabranch.lang.expr import Column, Expr
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.physical import plain_shape

State = BaseState | IntermediateState


class WindowJoin:
    """One join of the plan over the states of its inputs."""

    def __init__(
        self,
        program: JoinProgram,
        inputs: tuple[State, ...],
        bases: Mapping[str, BaseState],
        codes: CodeReader,
        meter: Meter,
        since: tuple[int, ...] = (),
    ) -> None:
        """`since` gives, for each input, the first row number that counts; without it, all live rows do."""
        self.program = program
        self.inputs = inputs
        self.bases = bases
        self.codes = codes
        self.meter = meter
        self.since = since or (0,) * len(inputs)
        self.name = plain_shape(program.node)
        self._names = tuple(map(plain_shape, program.node.inputs))

    def probe(self, position: int, found: Combinations) -> Iterator[Combinations]:
        """Yields the results of new combinations of one input with the states of the other inputs."""
        yield from self._probe(position, self.program.probes[position], found)

    def enter(self, position: int, found: Combinations) -> None:
        """Makes new combinations of an inner join, an input of this one, findable by the other inputs."""
        started = perf_counter()
        state = self.inputs[position]
        assert isinstance(state, IntermediateState)
        state.insert(found, self.codes)
        self.meter.spent("insert", perf_counter() - started)
        self.meter.inserted(self._names[position], len(found))

    def _probe(self, position: int, probes: tuple[Probe, ...], found: Combinations) -> Iterator[Combinations]:
        if not len(found):
            return
        if not probes:
            yield found
            return
        probe, rest = probes[0], probes[1:]
        names = (self.name, self._names[position], self._names[probe.target])
        target, since = self.inputs[probe.target], self.since[probe.target]
        for kept in look_up(probe, found, target, self.bases, self.meter, names, since):
            yield from self._probe(position, rest, kept)


def look_up(
    probe: Probe,
    found: Combinations,
    target: State,
    bases: Mapping[str, BaseState],
    meter: Meter,
    names: tuple[str, str, str],
    since: int = 0,
) -> Iterator[Combinations]:
    """Probes in blocks: extends combinations by rows of the target, and keeps those that pass the probe's checks.

    The meter counts under `names`: the join, the origin and the target. Only rows of the target numbered from `since`
    on are found.
    """
    started = perf_counter()
    codes = _looked_up(probe, found, bases)
    meter.probed(*names, len(found), len(found) * target.ring.live_since(since))
    for offset in probe.offsets:
        shifted = codes + offset if offset else codes
        for matches in target.ring.probe(probe.index, shifted, found.newest, found.deadline, since=since):
            combinations = _extend(found, matches, target)
            if not isinstance(target, BaseState):
                combinations = living(combinations, bases, target.relations)
            probed = perf_counter()
            meter.spent("probe", probed - started)
            kept = checked(probe, combinations, bases, meter)
            meter.spent("check", perf_counter() - probed)
            meter.matched(*names, matches.visited, len(matches.rows), len(kept))
            yield kept
            started = perf_counter()
    meter.spent("probe", perf_counter() - started)


def meeting(
    probe: Probe,
    found: Combinations,
    target: State,
    bases: Mapping[str, BaseState],
    meter: Meter,
    names: tuple[str, str, str],
) -> Combinations:
    """Returns the combinations that have a match by codes and times (a semi-join).

    The probe's other checks are not applied here, so a combination that passes may still fail in the probe.
    """
    started = perf_counter()
    codes = _looked_up(probe, found, bases)
    meter.probed(*names, len(found), len(found) * target.ring.live)
    is_met = np.zeros(len(found), dtype=np.bool_)
    visited = sum(
        target.ring.mark_met(probe.index, codes + offset if offset else codes, found.newest, found.deadline, is_met)
        for offset in probe.offsets
    )
    kept = keep(found, is_met)
    meter.matched(*names, visited, 0, len(kept))
    meter.spent("probe", perf_counter() - started)
    return kept


def passing(predicate: Expr, found: Combinations, bases: Mapping[str, BaseState]) -> Combinations:
    """Returns the combinations for which a predicate over their bound relations is true."""
    return keep(found, evaluate_mask(predicate, lambda column: read_column(bases, column, found), len(found)))


def checked(probe: Probe | Entry, found: Combinations, bases: Mapping[str, BaseState], meter: Meter) -> Combinations:
    """Returns the combinations that pass every check that this probe, or leaving a shared join, makes possible."""
    for check in probe.checks:
        if not len(found):
            return found
        found = keep(found, _equal(check, found, bases))
    for theta in meter.in_order(probe.thetas):
        if not len(found):
            break
        started, before = perf_counter(), len(found)
        found = passing(theta.predicate, found, bases)
        meter.checked(theta, before, len(found), perf_counter() - started)
    return found


def _looked_up(probe: Probe, found: Combinations, bases: Mapping[str, BaseState]) -> Int64Array:
    """The codes that combinations look up."""
    several = zip(probe.index, probe.sources, strict=True)
    return combined([bases[relation].code(code, found.rows[relation]) for code, relation in several], len(found))


def _equal(check: KeyCheck, found: Combinations, bases: Mapping[str, BaseState]) -> BoolArray:
    """Returns True where a key is equal on both sides: by its codes if they are exact, else by its values."""
    left, right = bases[check.left], bases[check.right]
    left_rows, right_rows = found.rows[check.left], found.rows[check.right]
    if check.key.is_exact:
        same: BoolArray = left.code(check.key.name, left_rows) == right.code(check.key.name, right_rows)
        return same
    sides = [check.key.expression(relation) for relation in (check.left, check.right)]
    texts = [_text(bases[relation], side) for relation, side in zip((check.left, check.right), sides, strict=True)]
    if texts[0] is not None and texts[1] is not None:
        return kernels.equal_texts(*texts[0], left_rows, *texts[1], right_rows)
    values = [evaluate(side, lambda column: read_column(bases, column, found), len(found)) for side in sides]
    return equal_values(values[0], values[1])


def _text(base: BaseState, side: Expr) -> TextColumn | None:
    """The text column that one side of a key is, if it is one."""
    return base.text(side.name) if isinstance(side, Column) else None


def read_column(bases: Mapping[str, BaseState], column: Column, found: Combinations) -> pa.Array:
    """Reads a payload column of the combinations."""
    return bases[column.relation].column(column.name, found.rows[column.relation])


def read_code(bases: Mapping[str, BaseState], name: str, relations: Set[str], found: Combinations) -> Int64Array:
    """Reads a code of the combinations, from the first bound relation among those compared by it.

    The base states do not determine these relations: another query that shares a state may compare other relations by
    the same code.
    """
    relation = next(bound for bound in found.rows if bound in relations)
    return bases[relation].code(name, found.rows[relation])


def code_reader(bases: Mapping[str, BaseState], graph: JoinGraph) -> CodeReader:
    """Returns a reader of the codes of combinations for which the key classes and bands of the graph hold."""
    compared = compared_by(graph)
    return lambda name, found: read_code(bases, name, compared[name], found)


def living(found: Combinations, bases: Mapping[str, BaseState], relations: Iterable[str] | None = None) -> Combinations:
    """Returns the combinations whose rows are all live, in these relations or in all.

    A state drops only its oldest combinations. A live combination may be followed by some that bands over event times
    have put out of reach. The test of newest and deadline does not exclude those, and their rows may be gone. Nor does
    it exclude combinations with a row that its table has lost since.
    """
    for name in found.rows if relations is None else relations:
        base = bases.get(name)
        if base is not None and base.loses_rows:
            found = keep(found, base.are_there(found.rows[name]))
    return found


def keep(found: Combinations, mask: BoolArray) -> Combinations:
    if mask.all():
        return found
    return found.take(np.flatnonzero(mask))


def _extend(found: Combinations, matches: Matches, target: State) -> Combinations:
    rows = {relation: numbers.take(matches.probes) for relation, numbers in found.rows.items()}
    carried = {name: values.take(matches.probes, axis=0) for name, values in found.carried.items()}
    if isinstance(target, BaseState):
        rows[target.relation] = matches.rows
    else:
        rows |= target.bound(matches.rows)
        carried |= target.carried(matches.rows)
    return Combinations(rows, matches.newest, matches.deadline, carried)
