"""Hypothesis strategies for queries with outer, semi and anti joins, as CQL and as equivalent DuckDB SQL.

DuckDB's text expresses CQL's windows in SQL: a row of a side matches a combination if each is inside the window of
every row of the other. An unmatched combination is in the answer if its deadline is before the final watermark, which
the caller substitutes for `$WATERMARK`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from hypothesis import strategies as st

from anabranch.lang.catalog import Catalog, TableDeclaration
from anabranch.lang.schema import Schema
from tests.support.strategies import SECOND, TIME_BANDS, Arrivals, DrawnQuery, arrivals

WATERMARK = "$WATERMARK"
_EQUAL = (
    "{a}.x = {b}.x",
    "{a}.x = {b}.y",
    "{a}.s = {b}.s",
    "{a}.x + 1 = {b}.x",
    "{a}.d = {b}.d",
    "{a}.x = {b}.f",
    "{a}.ts = {b}.ts",
    "{a}.x = {b}.x AND {a}.s = {b}.s",
    "{a}.x = {b}.x AND {a}.x = {b}.y",
)
_OTHER = (
    *TIME_BANDS,
    "{a}.x < {b}.x",
    "ABS({a}.x - {b}.x) <= 1",
    "{a}.f - {b}.f BETWEEN -0.5 AND 0.5",
    "({a}.x = {b}.x OR {a}.s = {b}.s)",
    "COALESCE({a}.x, 2) = COALESCE({b}.y, 1)",
    "{a}.p % 2 = {b}.p % 2",
)
_BESIDE = ("{b}.p % 3 <> 0", "{a}.p % 3 <> 0", "{a}.x IS NULL", "{b}.x IN (0, 1)", "{a}.x = {a}.y", "TRUE", "FALSE")
_WHERE = (
    "{a}.p % 3 <> 0",
    "{a}.x IS NULL",
    "{a}.x IS NOT NULL",
    "COALESCE({a}.x, 7) <> 2",
    "{a}.s LIKE 'a%'",
    "{a}.ts IS NULL",
)


@dataclass(frozen=True)
class _Relation:
    name: str
    stream: str
    seconds: int
    is_table: bool = False
    kind: str = "RANGE"
    """Or TUMBLE or HOP, which exclude their end."""

    def cql(self, slide: int | None) -> str:
        if self.is_table:
            return f"{self.stream} AS {self.name}"
        if self.kind == "TUMBLE":
            return f"{self.stream} [TUMBLE {slide or self.seconds} SECONDS] AS {self.name}"
        if self.kind == "HOP":
            return f"{self.stream} [HOP {self.seconds} SECONDS SLIDE {slide} SECONDS] AS {self.name}"
        suffix = f" SLIDE {slide} SECONDS" if slide else ""
        window = f"[RANGE {self.seconds} SECONDS{suffix}]" if self.seconds else "[NOW]"
        return f"{self.stream} {window} AS {self.name}"

    @property
    def sql(self) -> str:
        return f"{self.stream} AS {self.name}"

    @property
    def leaves(self) -> str:
        if self.kind == "TUMBLE":
            size = self.seconds * SECOND
            return f"((floor(epoch_us({self.name}.ts) / {size}.0)::BIGINT + 1) * {size} - 1)"
        return f"(epoch_us({self.name}.ts) + {self.seconds * SECOND})"


@st.composite
def outer_queries(draw: st.DrawFn, streams: int, slide: int | None = None, tables: int = 0) -> DrawnQuery:
    """Draws a query of one to three streams in its core and one to three sides; grouped if a slide is given.

    Some of the relations are tables, if there are any; then there may be no side.
    """
    drawn = _Drawn(draw, streams, slide, tables)
    return drawn.query()


@st.composite
def drawn_tables(draw: st.DrawFn, count: int, most_rows: int = 6) -> dict[str, pa.Table]:
    """Draws tables t0, t1, … with the columns of drawn streams, except the event time."""
    found = {}
    for number in range(count):
        table = draw(arrivals(1, most_rows=most_rows)).tables["s0"].drop_columns(["ts"])
        found[f"t{number}"] = table
    return found


def with_tables(catalog: Catalog, tables: Mapping[str, pa.Table]) -> Catalog:
    """Returns the catalog of streams with tables added."""
    for name, table in tables.items():
        catalog.register_table(TableDeclaration(name, Schema.from_arrow(table.schema)))
    return catalog


def with_watermark(sql: str, rows: Arrivals) -> str:
    """Returns DuckDB's text with the watermark of some rows."""
    return sql.replace(WATERMARK, str(int(final_watermark(rows.tables, rows.disorder))))


def final_watermark(tables: Mapping[str, pa.Table], disorder: Mapping[str, int]) -> float:
    """Returns the watermark after all rows of the streams that a query reads."""
    marks = []
    for name, table in tables.items():
        times = table["ts"].cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()
        marks.append(max(times) - disorder[name] if times else -math.inf)
    least = min(marks)
    return -(2**60) if least == -math.inf else least


ALIASES = "abceghijklmnoqrvwz"
"""Names of relations: more than a query draws, and none that is a column name."""


class _Drawn:
    def __init__(self, draw: st.DrawFn, streams: int, slide: int | None, tables: int) -> None:
        self.draw = draw
        self.tables = tables
        self.streams = streams
        self.slide = slide
        self.made: list[_Relation] = []
        self.sql_where: list[str] = []
        self.cql_where: list[str] = []
        self.windows = draw(st.sampled_from([(3, 10), (10,), (0, 3, 5, 10, 25)]))
        self.kind = draw(st.sampled_from(["RANGE", "RANGE", "TUMBLE", *(["HOP"] if slide is not None else [])]))

    def relation(self, *, may_be_table: bool = True) -> _Relation:
        number = len(self.made)
        if may_be_table and self.tables and self.draw(st.booleans()):
            table = _Relation(ALIASES[number], f"t{self.draw(st.integers(0, self.tables - 1))}", 0, is_table=True)
            self.made.append(table)
            return table
        seconds = self.draw(st.sampled_from(self.windows))
        if self.slide is not None:
            seconds = seconds or self.slide
        kind = self.kind
        if self.slide is None and kind == "TUMBLE":
            # Of one size, and mixed with other windows in a query without groups.
            kind = self.draw(st.sampled_from(["RANGE", "TUMBLE"]))
            seconds = self.windows[-1] if kind == "TUMBLE" else seconds
        # All streams are read; otherwise the watermark would not be that of all rows.
        made = _Relation(ALIASES[number], f"s{number % self.streams}", seconds, kind=kind)
        self.made.append(made)
        return made

    def on(self, before: Sequence[_Relation], own: Sequence[_Relation]) -> str:
        """Draws a condition between the previous relations and the new ones."""
        last = own[0]
        parts = []
        if self.draw(st.integers(0, 9)):
            partner = self.draw(st.sampled_from(list(before)))
            templates: tuple[str, ...] = _EQUAL if self.draw(st.integers(0, 3)) else _OTHER
            if partner.is_table or last.is_table:
                templates = tuple(template for template in templates if ".ts" not in template)
            parts.append(self.draw(st.sampled_from(templates)).format(a=partner.name, b=last.name))
        if not self.draw(st.integers(0, 2)):
            partner = self.draw(st.sampled_from(list(before)))
            every: tuple[str, ...] = (*_EQUAL, *_OTHER, *_BESIDE)
            if partner.is_table or last.is_table:
                every = tuple(template for template in every if ".ts" not in template)
            chosen = self.draw(st.sampled_from(every))
            parts.append(chosen.format(a=partner.name, b=last.name))
        return " AND ".join(parts) or "TRUE"

    def inner(self, count: int, *, of_any: bool = False) -> tuple[list[_Relation], str, str]:
        """Draws streams joined by JOIN … ON: as CQL, and as SQL with the windows."""
        several = [self.relation(may_be_table=of_any)]
        cql, sql = several[0].cql(self.slide), several[0].sql
        for _ in range(count - 1):
            new = self.relation()
            on = self.on(several, [new])
            cql += f" JOIN {new.cql(self.slide)} ON {on}"
            sql += f" JOIN {new.sql} ON ({on}) AND {_inside(several, [new])}"
            several.append(new)
        return several, cql, sql

    def query(self) -> DrawnQuery:
        core, cql, sql = self.inner(self.draw(st.sampled_from([1, 1, 2, 3])))
        visible = list(core)
        first = self.draw(st.sampled_from(["", "", "RIGHT", "FULL"]))
        if first:
            new = self.relation(may_be_table=False)
            on = self.on(core, [new])
            cql += f" {first} JOIN {new.cql(self.slide)} ON {on}"
            inside = f"({on}) AND {_inside(core, [new])}"
            if first == "RIGHT":
                sql = f"{new.sql} LEFT JOIN ({sql}) ON {inside}"
                self.sql_where.append(f"({core[0].name}.ts IS NOT NULL OR {_due([new])})")
            else:
                sql = f"({sql}) FULL JOIN {new.sql} ON {inside}"
                self.sql_where.append(
                    f"(({core[0].name}.ts IS NOT NULL AND {new.name}.ts IS NOT NULL)"
                    f" OR ({new.name}.ts IS NULL AND {_due(core)}) OR ({core[0].name}.ts IS NULL AND {_due([new])}))"
                )
            visible = [*core, new]
        subqueries: list[str] = []
        for _ in range(self.draw(st.integers(0 if first or self.tables else 1, 2 if first else 3))):
            kind = self.draw(st.sampled_from(["LEFT", "LEFT", "SEMI", "ANTI", "EXISTS", "IN"]))
            if kind == "LEFT":
                new = self.relation()
                on = self.on(visible, [new])
                cql += f" LEFT {self.draw(st.sampled_from(['', 'OUTER ']))}JOIN {new.cql(self.slide)} ON {on}"
                sql += f" LEFT JOIN {new.sql} ON ({on}) AND {_inside(visible, [new])}"
                if not new.is_table:
                    self.sql_where.append(f"({new.name}.p IS NOT NULL OR {_due(visible)})")
                visible.append(new)
            elif kind in ("SEMI", "ANTI"):
                new = self.relation()
                on = self.on(visible, [new])
                cql += f" LEFT {kind} JOIN {new.cql(self.slide)} ON {on}"
                inside = f"EXISTS (SELECT 1 FROM {new.sql} WHERE ({on}) AND {_inside(visible, [new])})"
                due = "TRUE" if new.is_table else _due(visible)
                self.sql_where.append(inside if kind == "SEMI" else f"(NOT {inside} AND {due})")
            else:
                subqueries.append(kind)
            if len(self.made) + len(subqueries) > 6:
                break
        for kind in subqueries:
            # They come after all joins of FROM, in any order.
            self._subquery(kind, visible)
        for _ in range(self.draw(st.integers(0, 2))):
            # Conditions come after the subqueries, which they do not affect.
            chosen = self.draw(st.sampled_from(visible))
            template = self.draw(st.sampled_from(_WHERE[:-1] if chosen.is_table else _WHERE))
            condition = template.format(a=chosen.name)
            self.cql_where.append(condition)
            self.sql_where.append(condition)
        return self._text(cql, sql, visible, tuple(relation.name for relation in core))

    def _subquery(self, kind: str, visible: list[_Relation]) -> None:
        own, from_cql, from_sql = self.inner(self.draw(st.sampled_from([1, 1, 2])), of_any=True)
        on = self.on(visible, own)
        negated = self.draw(st.booleans())
        column = self.draw(st.sampled_from(["x", "s"]))
        value = f"{self.draw(st.sampled_from(visible)).name}.{column} {'NOT ' if negated else ''}IN"
        head = value if kind == "IN" else f"{'NOT ' if negated else ''}EXISTS"
        selected = f"{own[-1].name}.{column}" if kind == "IN" else "1"
        self.cql_where.append(f"{head} (SELECT {selected} FROM {from_cql} WHERE {on})")
        found = f"{head} (SELECT {selected} FROM {from_sql} WHERE ({on}) AND {_inside(visible, own)})"
        due = "TRUE" if all(each.is_table for each in own) else _due(visible)
        self.sql_where.append(f"({found} AND {due})" if negated else found)

    def _text(self, cql: str, sql: str, visible: list[_Relation], core: tuple[str, ...]) -> DrawnQuery:
        where = f" WHERE {' AND '.join(self.cql_where)}" if self.cql_where else ""
        if self.slide is not None:
            first, last = visible[0].name, visible[-1].name
            keys = self.draw(st.sampled_from([(), (f"{first}.x",), (f"{last}.s",), (f"{first}.x", f"{last}.s")]))
            chosen = "".join(f"{key} AS g{i}, " for i, key in enumerate(keys))
            names = [each.name for each in visible]
            counted = ", ".join(f"COUNT({name}.p) AS n{name}, MAX({name}.p) AS m{name}" for name in names)
            group = f" GROUP BY {', '.join(keys)}" if keys else ""
            listed = f"WINDOW_END() AS at, {chosen}COUNT(*) AS n, {counted}, SUM({last}.x) AS t"
            return DrawnQuery(f"SELECT {listed} FROM {cql}{where}{group}", "", core)
        outputs = ", ".join([*(f"{each.name}.p AS p{each.name}" for each in visible), f"{visible[-1].name}.s AS s"])
        return DrawnQuery(
            f"SELECT {outputs} FROM {cql}{where}",
            f"SELECT {outputs} FROM {sql} WHERE {' AND '.join(['TRUE', *self.sql_where])}",
            core,
        )


def _inside(before: Sequence[_Relation], own: Sequence[_Relation]) -> str:
    """The condition that all new rows are inside the windows of the previous ones, and vice versa."""
    parts = [
        f"({one.name}.ts IS NULL OR {other.name}.ts IS NULL OR (epoch_us({one.name}.ts) <= {other.leaves}"
        f" AND epoch_us({other.name}.ts) <= {one.leaves}))"
        for one in before
        for other in own
        if not one.is_table and not other.is_table
    ]
    return " AND ".join(parts) or "TRUE"


def _due(several: Sequence[_Relation]) -> str:
    """The condition that the watermark has passed the deadline of a combination."""
    ends = ", ".join(f"coalesce({each.leaves}, {2**61})" for each in several if not each.is_table)
    return f"least({ends}) < {WATERMARK}"
