"""Join graphs and random settings for the tests of choosing."""

from __future__ import annotations

import random
from itertools import pairwise

import pyarrow as pa

from anabranch.cost.estimates import Estimates, from_edges
from anabranch.lang.expr import Call, Column, Literal
from anabranch.lang.schema import TIMESTAMP, Field, Schema
from anabranch.lang.window import Window
from anabranch.plan.join_graph import JoinGraph, KeyClass, Relation, Theta


def relation(name: str, columns: tuple[str, ...], seconds: int | None = 10, *, filtered: bool = False) -> Relation:
    """A relation over a stream named after it, with bigint columns."""
    fields = (Field("ts", TIMESTAMP), *(Field(column, pa.int64()) for column in columns))
    window = Window(None if seconds is None else seconds * 1_000_000)
    predicate = Call("greater", (Column(name, columns[0], pa.int64()), Literal(0, pa.int64())), pa.bool_())
    return Relation(name, f"{name}_stream", Schema(fields), "ts", window, filter=predicate if filtered else None)


def key(name: str, *members: tuple[str, str]) -> KeyClass:
    """An equality of one column per relation."""
    columns = tuple((relation, Column(relation, column, pa.int64())) for relation, column in members)
    return KeyClass(name, columns, pa.int64())


def less(left: tuple[str, str], right: tuple[str, str]) -> Theta:
    """left < right, over two relations."""
    sides = (Column(*left, pa.int64()), Column(*right, pa.int64()))
    return Theta(Call("less", sides, pa.bool_()), frozenset({left[0], right[0]}))


def chain_graph(names: str = "abc", seconds: int = 10) -> JoinGraph:
    """a - b - c …, each edge with a key of its own."""
    relations = tuple(relation(name, (f"{name}{i}", f"{name}{i + 1}"), seconds) for i, name in enumerate(names))
    keys = tuple(
        key(f"k{i}", (left, f"{left}{i + 1}"), (right, f"{right}{i + 1}"))
        for i, (left, right) in enumerate(pairwise(names))
    )
    return JoinGraph(relations, keys)


def random_setting(rng: random.Random, size: int, *, extra_edges: int = 0, star: bool = False) -> Estimates:
    """A random connected join graph; a tree when there are no extra edges."""
    names = [f"s{i}" for i in range(size)]
    rates = {name: rng.uniform(1, 100) for name in names}
    edges: dict[tuple[str, str], float] = {}
    for position in range(1, size):
        parent = 0 if star else rng.randrange(position)
        edges[names[parent], names[position]] = rng.uniform(0.001, 1) ** 2
    for _ in range(extra_edges):
        one, other = sorted(rng.sample(range(size), 2))
        edges.setdefault((names[one], names[other]), rng.uniform(0.01, 1))
    return from_edges(rates, rng.choice([0.2, 1.0, 3.0]), edges)
