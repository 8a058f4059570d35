"""The second oracle: a join query as DuckDB SQL, for data too large for the naive one.

DuckDB computes the batch answer over whole streams. Limit: only what means the same in DuckDB is translated; grouped
queries and functions with other rules there (rounding, letter case, most casts) are refused with a ValueError. Times
are passed as UTC timestamps without a zone.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import itertools
import math
from collections.abc import Mapping

import duckdb
import pyarrow as pa

from anabranch.lang.expr import Call, Cast, Column, Expr, Literal
from anabranch.lang.schema import is_decimal, is_float, is_integer, is_text
from anabranch.lang.window import CountWindow
from anabranch.plan.join_graph import Relation
from anabranch.plan.query import Query
from tests.support.own import MACROS

_CLOSED = '"+closed"'
"""The time at which enough later rows have arrived that a row leaves its count window."""
_INFIX = {
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "equal": "=",
    "not_equal": "<>",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
    "and": "AND",
    "or": "OR",
    "concat": "||",
}
_PREFIX = {
    "abs": "abs",
    "coalesce": "coalesce",
    "greatest": "greatest",
    "least": "least",
    "floor": "floor",
    "ceil": "ceil",
    "exp": "exp",
    "starts_with": "starts_with",
    "ends_with": "ends_with",
    "contains": "contains",
    "length": "length",
    "year": "year",
    "month": "month",
    "day": "day",
    "hour": "hour",
    "minute": "minute",
    "second": "second",
    "unix_micros": "epoch_us",
}


def duckdb_answer(query: Query, rows: Mapping[str, pa.Table]) -> pa.Table:
    """Computes all results of a join query over whole streams, `rows` by stream name, with the query's schema."""
    tables = {name.lower(): table for name, table in rows.items()}
    streams = {relation.stream.lower() for relation in query.graph.relations}
    answer = select(to_duckdb(query), {stream: _without_zones(tables[stream]) for stream in streams})
    return answer.cast(query.schema.to_arrow())


def select(sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
    """Returns DuckDB's answer to a SELECT over tables in memory, by name."""
    with _database().cursor() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        return connection.sql(sql).to_arrow_table()


@functools.cache
def _database() -> duckdb.DuckDBPyConnection:
    """One database for the process: opening one takes ten times as long as joining a few rows."""
    database = duckdb.connect(config={"threads": 1})
    for macro in MACROS:
        database.execute(macro)
    return database


def to_duckdb(query: Query) -> str:
    """Writes the query as one SELECT over tables named like the streams, in lower case."""
    if query.grouping is not None:
        raise ValueError("a grouped query has no DuckDB form; use the naive oracle")
    if query.sides:
        raise ValueError("outer joins are not translated; use the naive oracle, or SQL that was drawn with the query")
    graph = query.graph
    times = {relation.name: f"{_name(relation.name)}.{_name(relation.event_time)}" for relation in graph.relations}
    # A NULL event time makes its comparison NULL; a single relation has no comparison, so it is tested separately.
    conditions = [f"{times[relation.name]} IS NOT NULL" for relation in graph.relations]
    filters = [each.filter if each.condition is None else each.condition for each in graph.relations]
    conditions += [_sql(condition) for condition in filters if condition is not None]
    for key in graph.keys:
        conditions += [f"{_sql(one)} = {_sql(other)}" for (_, one), (_, other) in itertools.pairwise(key.members)]
    conditions += [_sql(theta.predicate) for theta in graph.thetas]
    # The newest row is within every range iff each row is within the range of every other; pairs prune early.
    for newer, older in itertools.permutations(graph.relations, 2):
        if older.window.range is not None:
            bound = f"epoch_us({times[older.name]}) + {older.window.range}"
            conditions.append(f"epoch_us({times[newer.name]}) <= {bound}")
    for older in graph.relations:
        for newer in graph.relations if older.window.is_counted else ():
            closed = f"{_name(older.name)}.{_CLOSED}"
            conditions.append(f"({closed} IS NULL OR epoch_us({times[newer.name]}) < {closed})")
    listed = ", ".join(f"{_sql(output.expression)} AS {_name(output.name)}" for output in query.outputs)
    tables = ", ".join(_table(relation) for relation in graph.relations)
    return f"SELECT {listed}\nFROM {tables}\nWHERE " + "\n  AND ".join(conditions)


def _table(relation: Relation) -> str:
    stream, window = _name(relation.stream.lower()), relation.window
    if not isinstance(window, CountWindow):
        return f"{stream} AS {_name(relation.name)}"
    time = _name(relation.event_time)
    by = f"PARTITION BY {', '.join(map(_name, window.partition))} " if window.partition else ""
    order = ", ".join(f"{_name(name)} NULLS FIRST" for name in (relation.event_time, *relation.schema.names))
    closed = f"lead(epoch_us({time}), {window.rows}) OVER ({by}ORDER BY {order}) AS {_CLOSED}"
    return f"(SELECT *, {closed} FROM {stream} WHERE {time} IS NOT NULL) AS {_name(relation.name)}"


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _without_zones(table: pa.Table) -> pa.Table:
    for index, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            plain = table.column(index).cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).cast(pa.timestamp("us"))
            table = table.set_column(index, field.name, plain)
    return table


def _sql(expr: Expr) -> str:
    match expr:
        case Column():
            return f"{_name(expr.relation)}.{_name(expr.name)}"
        case Literal():
            return _literal(expr)
        case Cast():
            return _cast(expr)
        case Call():
            return _call(expr, [_sql(argument) for argument in expr.arguments])


def _call(expr: Call, arguments: list[str]) -> str:
    function = expr.function
    if expr.own is not None:
        return f"{expr.own.name}({', '.join(arguments)})"
    if function in _INFIX:
        return f"({f' {_INFIX[function]} '.join(arguments)})"
    if function in _PREFIX:
        return f"{_PREFIX[function]}({', '.join(arguments)})"
    value = arguments[0]
    match function:
        case "divide":
            return f"({value} / nullif({arguments[1]}, 0))"
        case "modulo":
            return f"({value} % nullif({arguments[1]}, 0))"
        case "negate":
            return f"(- {value})"
        case "not":
            return f"(NOT {value})"
        case "is_null":
            return f"({value} IS NULL)"
        case "is_not_null":
            return f"({value} IS NOT NULL)"
        case "in":
            return f"({value} IN ({', '.join(arguments[1:])}))"
        case "like":
            return f"({value} LIKE {arguments[1]} ESCAPE '\\')"
        case "case":
            pairs = zip(arguments[:-1:2], arguments[1::2], strict=True)
            whens = " ".join(f"WHEN {condition} THEN {result}" for condition, result in pairs)
            return f"CASE {whens} ELSE {arguments[-1]} END"
        case "sqrt":
            return f"CASE WHEN {value} >= 0 THEN sqrt({value}) END"
        case "ln":
            return f"CASE WHEN {value} > 0 THEN ln({value}) END"
        case "trim" | "ltrim" | "rtrim":
            return f"{function}({value}, ' ')"
        case "date":
            return f"CAST({value} AS DATE)"
        case "timestamp_seconds" | "timestamp_millis":
            return f"make_timestamp({value} * {1_000_000 if function == 'timestamp_seconds' else 1_000})"
        case "timestamp_micros":
            return f"make_timestamp({value})"
        case "rlike":
            return f"regexp_matches({value}, {arguments[1]})"
        case "date_trunc":
            return f"date_trunc({value}, {arguments[1]})"
    raise ValueError(f"function '{function}' has no DuckDB form with the same rules")


def _cast(expr: Cast) -> str:
    source, target = expr.argument.type, expr.type
    same = (
        (is_integer(source) and (is_integer(target) or is_float(target) or is_decimal(target) or is_text(target)))
        or (is_float(source) and target == pa.float64())
        or (is_decimal(source) and is_decimal(target) and target.scale >= source.scale)
        or (is_decimal(source) and is_float(target))
        or (pa.types.is_date32(source) and pa.types.is_timestamp(target))
        or (pa.types.is_timestamp(source) and pa.types.is_date32(target))
    )
    if not same:
        raise ValueError(f"cast '{expr}' has no DuckDB form with the same rules")
    return f"CAST({_sql(expr.argument)} AS {_type(target)})"


def _type(kind: pa.DataType) -> str:
    if is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "TIMESTAMP"
    if pa.types.is_duration(kind):
        return "INTERVAL"
    if is_text(kind):
        return "VARCHAR"
    names = {"int8": "TINYINT", "int16": "SMALLINT", "int32": "INTEGER", "int64": "BIGINT", "float": "FLOAT"}
    names |= {"double": "DOUBLE", "bool": "BOOLEAN", "date32[day]": "DATE"}
    if str(kind) not in names:
        raise ValueError(f"type '{kind}' has no DuckDB form")
    return names[str(kind)]


def _literal(constant: Literal) -> str:
    value, name = constant.value, _type(constant.type)
    match value:
        case None:
            return f"CAST(NULL AS {name})"
        case bool():
            return "TRUE" if value else "FALSE"
        case float():
            return f"CAST('{repr(value) if math.isfinite(value) else value}' AS {name})"
        case int() | decimal.Decimal():
            return f"CAST('{value}' AS {name})"
        case str():
            return "'" + value.replace("'", "''") + "'"
        case datetime.datetime():
            aware = value.astimezone(datetime.UTC) if value.tzinfo else value
            return f"TIMESTAMP '{aware.replace(tzinfo=None).isoformat(sep=' ')}'"
        case datetime.date():
            return f"DATE '{value.isoformat()}'"
        case datetime.timedelta():
            return f"to_microseconds({value // datetime.timedelta(microseconds=1)})"
