"""Golden files of the front end: what a query is bound to, what each rule makes of it, and what errors say.

A file is a list of cases. A case is a line `=== name`, the query, and sections that begin with `--- title`; the
sections are what is compared, and what `pytest tests/golden --regold` rewrites.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from anabranch import cql
from anabranch.errors import AnabranchError
from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.schema import TIMESTAMP, Field, Schema
from anabranch.plan import logical
from anabranch.plan.normal_form import normal_form
from anabranch.plan.query import render_query
from anabranch.rewrite.pipeline import RULES, steps

HERE = Path(__file__).parent
CASE = re.compile(r"^=== (.+)\n", re.MULTILINE)


def catalog() -> Catalog:
    """Three streams of a market; only the event times and the order numbers are never NULL."""
    known = Catalog()
    known.register(
        _stream("trades", symbol=pa.string(), price=pa.decimal128(10, 2), quantity=pa.int32(), venue=pa.int64())
    )
    known.register(_stream("quotes", symbol=pa.string(), bid=pa.float64(), ask=pa.float64(), venue=pa.int64()))
    known.register(
        _stream("orders", number=pa.int64(), symbol=pa.string(), quantity=pa.int64(), tags=pa.list_(pa.string()))
    )
    return known


def _stream(name: str, **types: pa.DataType) -> StreamDeclaration:
    fields = [Field("ts", TIMESTAMP, nullable=False)]
    fields += [Field(column, kind, nullable=column != "number") for column, kind in types.items()]
    return StreamDeclaration(name, Schema(tuple(fields)), "ts")


def compiled(query: str) -> str:
    bound = cql.bind(query, catalog())
    rewritten = [bound, *(step.plan for step in steps(bound))][-1]
    return "\n".join(
        ["--- bound", logical.render(bound), "--- rewritten", logical.render(rewritten), _graph(query, rewritten)]
    )


def one_rule(name: str) -> Callable[[str], str]:
    """The first time the rule changes the plan of a query, and the graph that comes out at the end."""

    def answer(query: str) -> str:
        plan = cql.bind(query, catalog())
        lines: list[str] = []
        for step in steps(plan):
            if step.rule == name and not lines:
                lines = ["--- before", logical.render(plan), "--- after", logical.render(step.plan)]
            plan = step.plan
        return "\n".join([*(lines or ["--- does not apply"]), _graph(query, plan)])

    return answer


def _graph(query: str, plan: logical.LogicalPlan) -> str:
    normal = normal_form(query, plan)
    lines = ["--- graph", render_query(normal)]
    bands = [theta.band for theta in normal.graph.thetas if theta.band is not None]
    lines += [f"{band.low} <= {band.left} - {band.right} <= {band.high}" for band in bands]
    lines += [f"payload {relation.name}: {', '.join(relation.schema.names)}" for relation in normal.whole.relations]
    types = ", ".join(f"{field.name} {field.type}" for field in normal.schema)
    return "\n".join([*lines, f"answer: {types}"])


def refused(query: str) -> str:
    with pytest.raises(AnabranchError) as caught:
        cql.compile_query(query, catalog())
    return f"--- {type(caught.value).__name__}\n{caught.value}"


SPECS: dict[str, Callable[[str], str]] = {
    "cql/queries.spec": compiled,
    "cql/errors.spec": refused,
    **{f"rewrite/{rule.__name__}.spec": one_rule(rule.__name__) for rule in RULES},
}


@pytest.mark.parametrize("path", SPECS)
def test_golden(path: str, regold: bool) -> None:
    file = HERE / path
    text = file.read_text()
    _, *parts = CASE.split(text)
    answered = ""
    for name, body in zip(parts[::2], parts[1::2], strict=True):
        query = body.split("\n---", 1)[0].strip()
        lines = [line.rstrip() for line in SPECS[path](query).splitlines()]
        answered += f"=== {name}\n{query}\n" + "\n".join(lines) + "\n\n"
    answered = answered.rstrip("\n") + "\n"
    if regold:
        file.write_text(answered)
    assert answered == file.read_text(), f"{path} differs; look at it, then run pytest tests/golden --regold"


def test_every_rule_has_a_golden_that_it_applies_to() -> None:
    for rule in RULES:
        text = (HERE / "rewrite" / f"{rule.__name__}.spec").read_text()
        assert "--- after" in text, rule.__name__
