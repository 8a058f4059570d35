"""Runs of the regret suite: every static plan worth the name, `plan: auto`, and `plan: auto` that adapts.

*Work* is counted (`counting`), so it does not depend on the machine. What it leaves out (texts, searches, profiles,
checks of a mesh) is in the processor time.

*The best static plan* is the one of least work in hindsight. Candidates are all shapes of join trees up to five
relations (beyond that the undominated ones; in a quick run the most promising dozen), each with the best probe orders
by the statistics of the start, the middle and the end of the run; and the meshes learnt there. A candidate is given up
as soon as it has done more work than the best ones so far did in the whole run; work never shrinks, so the best one is
never given up.

Processor time is measured afterwards, with the best static plans and the choosers in turn on every batch, in an order
that alternates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from time import process_time
from types import MappingProxyType
from typing import Protocol

import numpy as np
import pyarrow as pa

from anabranch.adapt.rules import NO_RULES, ChangeRules
from anabranch.adapt.settings import Settings
from anabranch.engine.batch import RelationBatch, joined
from anabranch.optimize.deferring import deferring_variants
from anabranch.optimize.jtree_finder import QUICK, Space
from anabranch.optimize.problem import resource_model
from anabranch.optimize.shapes import Shape, in_order
from anabranch.plan.classing import carrying, widened
from anabranch.plan.mesh import Plan
from anabranch.plan.query import Query
from anabranch.plan.query_set import ALONE, by_itself, partitioning_of
from anabranch.planning.choosing import change_rules, decide, first_plan
from anabranch.planning.options import AUTO
from anabranch.run.local import LocalHost
from anabranch.run.meshing import learn_from_rows
from anabranch.run.rows import relation_batch
from anabranch.run.sample import Sample, Stretch, narrowed, sampled, sampled_classes, with_attributes
from anabranch.run.tables import table_batch
from anabranch.run.wire import wire_layout
from lab.counting import Counter
from lab.regret_workloads import WINDOW, Batches, Kind, Size

SAMPLED = WINDOW + 2
"""Batches from which statistics are sampled."""
NO_TABLES: Mapping[str, pa.Table] = MappingProxyType({})
MOST_BYTES = 2e9
"""A plan that is expected to hold more, such as the product of a stream and a large table, is not run."""
TIMED = 2
"""Static plans whose processor time is measured: those of least work."""
HOPELESS = 10
"""A plan that has done so many times the work of the best is given up, even if fewer are left to be timed."""


class AnyWorkload(Protocol):
    """What the suite needs of a workload, drawn or recorded."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> Kind: ...
    @property
    def query(self) -> Query: ...
    @property
    def tables(self) -> Mapping[str, pa.Table]: ...
    @property
    def batch(self) -> float:
        """Seconds of event time in a batch."""

    def batches(self, seed: int, size: Size) -> Batches: ...


@dataclass(frozen=True)
class Run:
    """One way through a workload."""

    plan: str
    """The plan at the end."""
    work: float
    cpu: float
    state: int
    """The most bytes of state after any batch."""
    changes: int = 0
    results: int = 0
    answer: int = 0
    """The fingerprint of the results."""
    deciding: float = 0.0
    """Of the processor time, what the driver decided in, and slots looked at their operators in."""

    @property
    def share_deciding(self) -> float:
        """What deciding adds to the processor time of the batches."""
        return self.deciding / (self.cpu - self.deciding)


@dataclass(frozen=True)
class Found:
    """The outcome of one workload."""

    name: str
    kind: Kind
    relations: int
    tried: int
    """Static plans."""
    fixed_plans: tuple[Run, ...]
    """The best static plans, least work first."""
    auto: Run
    adapt: Run
    blind: Run
    """Adapts as well, but nothing was sampled before the start, as with sources that cannot be sampled."""
    kept: Run
    """Keeps the plan that `blind` begins with."""

    @property
    def idle(self) -> float | None:
        """What deciding adds to the processor time; None where the plan changed: then it was not idle.

        Every run hands out plans and takes in reports; only what the adapting one does beyond that counts.
        """
        added = self.adapt.deciding - self.auto.deciding
        return None if self.adapt.changes else max(0.0, added / (self.auto.cpu - self.auto.deciding))

    @property
    def regret(self) -> float:
        """Work of the adapting run over that of the best static plan."""
        return self.adapt.work / self.fixed_plans[0].work

    @property
    def blind_regret(self) -> float:
        return self.blind.work / self.fixed_plans[0].work

    @property
    def cpu_regret(self) -> float:
        return self.adapt.cpu / min(run.cpu for run in self.fixed_plans)

    @property
    def gain(self) -> float:
        """Work of the first plan, kept for ever, over that of the adapting run."""
        return self.auto.work / self.adapt.work

    @property
    def blind_gain(self) -> float:
        """The gain where nothing was sampled: the first plan is a guess."""
        return self.kept.work / self.blind.work

    @property
    def is_exact(self) -> bool:
        """True when all runs had the same results."""
        runs = (*self.fixed_plans, self.auto, self.adapt, self.blind, self.kept)
        return len({(run.results, run.answer) for run in runs}) == 1


class Runner:
    """A host with a count of its work."""

    def __init__(
        self, workload: AnyWorkload, query: Query, plan: Plan, rules: ChangeRules = NO_RULES, *, compares: bool = True
    ) -> None:
        """Without `compares`, results have no fingerprint."""
        self._compares = compares
        self.host = LocalHost(query, plan, rules=rules, tables=workload.tables)
        self.work, self.cpu, self.state, self.results, self.answer = 0.0, 0.0, 0, 0, 0
        self._looking = 0.0
        self._counter = Counter(query, plan, workload.batch)

    def step(self, batch: Mapping[str, pa.Table]) -> None:
        started = process_time()
        found = self.host.step(batch)
        self.cpu += process_time() - started
        self.results += found.num_rows
        if self._compares:
            self.answer = (self.answer + fingerprint(found)) % (1 << 64)
        counted = self._counter.after(self.host)
        self.work += counted.work
        self.state = max(self.state, counted.state_bytes)
        self._looking += sum(report.seconds.get("look", 0.0) for report in self.host.reports.values())

    @property
    def run(self) -> Run:
        changes = sum(each.get("phase") == "began" for each in self.host.history)
        deciding = self.host.seconds_adapting + self._looking
        return Run(str(self.host.plan), self.work, self.cpu, self.state, changes, self.results, self.answer, deciding)


def measured(workload: AnyWorkload, seed: int, size: Size) -> Found:
    """The runs of one workload."""
    query = workload.query
    batches = partial(workload.batches, seed, size)
    samples = sampled_places(query, batches, size, workload.batch, workload.tables)
    candidates = static_plans(query, samples, workload.batch, size.every_shape)[: size.most_plans]
    best = race(workload, query, candidates, list(batches()))
    learn = partial(learn_from_rows, with_attributes(query, samples[0].wide), samples[0].wide)
    choice = decide(query, batch=workload.batch, seen=samples[0].statistics, learn=learn)
    nothing = decide(query, batch=workload.batch)
    plans = {str(number): plan for number, plan in enumerate(best)}
    runners = {name: Runner(workload, query, plan) for name, plan in plans.items()}
    stays = partial(change_rules, query, AUTO)
    free = partial(change_rules, query, AUTO, adapt=Settings())
    classes = sampled_classes({ALONE: samples[0]})
    carried = carrying(by_itself(query), [(ALONE, first_plan(choice))], classes).member(ALONE).query
    runners["auto"] = Runner(workload, carried, first_plan(choice), replace(stays(choice), first_search=None))
    runners["adapt"] = Runner(workload, carried, first_plan(choice), replace(free(choice), waits=True))
    runners["blind"] = Runner(workload, query, first_plan(nothing), replace(free(nothing), waits=True))
    runners["kept"] = Runner(workload, query, first_plan(nothing), replace(stays(nothing), first_search=None))
    for number, batch in enumerate(batches()):
        for name in list(runners)[:: -1 if number % 2 else 1]:
            runners[name].step(batch)
    fixed_plans = sorted((runners[name].run for name in plans), key=lambda run: run.work)
    return Found(
        name=workload.name,
        kind=workload.kind,
        relations=len(query.graph.names),
        tried=len(candidates),
        fixed_plans=tuple(fixed_plans),
        auto=runners["auto"].run,
        adapt=runners["adapt"].run,
        blind=runners["blind"].run,
        kept=runners["kept"].run,
    )


def race(
    workload: AnyWorkload, query: Query, plans: Sequence[Plan], batches: Sequence[Mapping[str, pa.Table]]
) -> list[Plan]:
    """The plans of least work, the best first; the others were given up once they had done more."""
    ended: list[tuple[float, int]] = []
    for number, plan in enumerate(plans):
        runner = Runner(workload, query, plan, compares=False)
        bound = ended[TIMED - 1][0] if len(ended) >= TIMED else ended[0][0] * HOPELESS if ended else float("inf")
        for batch in batches:
            runner.step(batch)
            if runner.work > bound:
                break
        else:
            ended = sorted([*ended, (runner.work, number)])[:TIMED]
    return [plans[number] for _, number in ended]


# --- static plans -----------------------------------------------------------------------------------------------------


def static_plans(query: Query, samples: Sequence[Sample], seconds: float, most: int = 5) -> list[Plan]:
    """The candidates, the most promising by the samples first; every shape up to `most` relations.

    A batch has so many seconds of event time.
    """
    found: dict[str, tuple[float, Plan]] = {}
    meshes: dict[str, Plan] = {}
    for sample in samples:
        model = resource_model(query.graph, sample.statistics, seconds, query.merging)
        space = Space(model)
        if space.size <= most:
            shapes = every_shape(model.estimates.everything)
            priced = [space.orderer.considered(shape, "") for shape in shapes]
        else:
            priced = list(space.undominated(effort=QUICK).plans)
        priced = [each for each in priced if each.cost.memory <= MOST_BYTES]
        later = deferring_variants(priced, model, query.graph)
        for cpu, plan in ((each.cost.cpu, each.plan) for each in (*priced, *later)):
            known = found.get(str(plan))
            found[str(plan)] = (cpu if known is None else min(cpu, known[0]), plan)
        held = {name: model.rows(model.estimates.mask((name,))) for name in query.graph.names}
        rows = sample.wide
        if space.size > 2 and (learnt := learn_from_rows(with_attributes(query, rows), rows, held)).is_mesh:
            meshes[str(learnt.mesh)] = learnt.mesh
    ordered = [plan for _, plan in sorted(found.values(), key=lambda each: each[0])]
    return [*meshes.values(), *ordered]


def every_shape(mask: int) -> Iterator[Shape]:
    """All join trees over a set of relations, mixtures included."""
    for blocks in _partitions(mask):
        if len(blocks) < 2:
            continue
        inner: list[Shape] = [{}]
        for block in blocks:
            if block.bit_count() > 1:
                inner = [{**shape, **below} for shape in inner for below in every_shape(block)]
        yield from ({mask: in_order(blocks), **shape} for shape in inner)


def _partitions(mask: int) -> Iterator[tuple[int, ...]]:
    """All partitions of a set."""
    if not mask:
        yield ()
        return
    first = mask & -mask
    rest = part = mask ^ first
    while True:
        for others in _partitions(rest ^ part):
            yield (first | part, *others)
        if not part:
            return
        part = (part - 1) & rest


# --- samples ----------------------------------------------------------------------------------------------------------


def sampled_places(
    query: Query,
    batches: Callable[[], Batches],
    size: Size,
    seconds: float,
    tables: Mapping[str, pa.Table] = NO_TABLES,
) -> list[Sample]:
    """Samples of the start, the middle and the end of a run, whose batches have so many seconds each."""
    places = 0, max(0, size.batches // 2 - SAMPLED // 2), max(0, size.batches - SAMPLED)
    return [sample_of(query, list(islice(batches(), at, at + SAMPLED)), seconds, tables) for at in places]


def fingerprint(rows: pa.Table) -> int:
    """A number that any order of the same rows has in common, and hardly any other rows have."""
    from pandas.util import hash_pandas_object  # only where rows are compared

    return int(hash_pandas_object(rows.to_pandas(), index=False).to_numpy().sum(dtype=np.uint64))


def sample_of(
    query: Query,
    batches: Sequence[Mapping[str, pa.Table]],
    seconds: float,
    tables: Mapping[str, pa.Table] = NO_TABLES,
) -> Sample:
    """The sample that some batches are, each of so many seconds; of tables, it knows how many rows they have."""
    wide = widened(query, lambda relation, field: field.name in batches[0][relation.stream].column_names)
    alone = by_itself(wide)
    layout = wire_layout(alone, partitioning_of(alone, 1))
    found: dict[str, RelationBatch] = {}
    stretches: dict[str, Stretch] = {}
    for relation in wide.graph.streamed:
        several = [relation_batch(relation, layout, batch[relation.stream]) for batch in batches]
        found[relation.name] = joined([layout.empty(relation.name), *several])
        count = sum(batch[relation.stream].num_rows for batch in batches)
        passing = len(found[relation.name]) / max(1, count)
        stretches[relation.name] = Stretch(float(count), len(batches) * seconds, passing)
    for relation in query.graph.relations:
        if relation.is_table and relation.stream in tables:
            count = tables[relation.stream].num_rows
            passing = len(table_batch(relation, layout, tables[relation.stream])) / max(1, count)
            stretches[relation.name] = Stretch(float(count), 0.0, passing)
    rows = narrowed(query, found)
    return Sample(sampled(query, stretches, rows), rows, wide=found)
