"""Expressions as Spark SQL text with the meaning that the engine gives them.

The text is for sessions in ANSI mode (Spark's default), where overflow and casts that do not fit are errors; where the
language wants NULL instead, the `try_` functions are used. It does not depend on the session's time zone: dates and
clock fields are taken from microseconds since the epoch, and a wall clock without a zone is that of UTC, as in the
engine.
"""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Callable

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import SparkSession, types
from pyspark.sql import functions as f

from anabranch.errors import ExpressionError, HostError
from anabranch.expr import Call, Cast, Column, Expr, Literal, can_fail
from anabranch.host.spark.arrow_schema import data_type
from anabranch.plan.join_graph import JoinGraph
from anabranch.schema import is_decimal, is_float, is_integer, is_text

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
_DAY = 86_400_000_000
_EPOCH_LOCAL = "TIMESTAMP_NTZ'1970-01-01 00:00:00'"
_MICRO = "INTERVAL '0 00:00:00.000001' DAY TO SECOND"
_MOST_DIGITS = 22

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
}
_PREFIX = {
    "divide": "try_divide",
    "modulo": "try_mod",
    "abs": "abs",
    "coalesce": "coalesce",
    "exp": "exp",
    "ln": "ln",
    "power": "power",
    "greatest": "greatest",
    "least": "least",
    "lower": "lower",
    "upper": "upper",
    "trim": "trim",
    "ltrim": "ltrim",
    "rtrim": "rtrim",
    "concat": "concat",
    "starts_with": "startswith",
    "ends_with": "endswith",
    "contains": "contains",
    "replace": "replace",
    "unix_micros": "unix_micros",
}
_CLOCK = {"hour": (3_600_000_000, 24), "minute": (60_000_000, 60), "second": (1_000_000, 60)}


def quote(name: str) -> str:
    """A name as a Spark identifier."""
    return "`" + name.replace("`", "``") + "`"


def to_spark_sql(expr: Expr, column: Callable[[Column], str]) -> str:
    """The expression as Spark SQL; `column` gives the text of a column reference."""
    match expr:
        case Column():
            return column(expr)
        case Literal():
            return literal(expr)
        case Cast():
            return _cast(to_spark_sql(expr.argument, column), expr.argument.type, expr.type)
        case Call():
            return _call(expr, [to_spark_sql(argument, column) for argument in expr.arguments])


def to_column(expr: Expr) -> SparkColumn:
    """The expression over the columns of one frame."""
    if isinstance(expr, Column) and not _is_wall_clock(expr.type):
        return f.col(quote(expr.name))
    return f.expr(to_spark_sql(expr, _of_frame))


def _of_frame(column: Column) -> str:
    """A column of the frame; a wall clock as the time at which UTC shows it.

    Left to itself, Spark would take it for the time at which the session's zone does, which two clocks may share.
    """
    name = quote(column.name)
    return _from_local(name) if _is_wall_clock(column.type) else name


def _is_wall_clock(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is None


def require_ansi(spark: SparkSession, graph: JoinGraph) -> None:
    """Refuses what a session that is not in ANSI mode would compute wrongly where it should fail."""
    if str(spark.conf.get("spark.sql.ansi.enabled")).lower() == "true":
        return
    for relation in graph.relations:
        computed = [key.expression(relation.name) for key in graph.keys_of([relation.name])]
        for expression in [*computed, *([relation.filter] if relation.filter is not None else [])]:
            if can_fail(expression):
                raise HostError(
                    "the Spark session has 'spark.sql.ansi.enabled' off",
                    detail=f"'{expression}' may overflow or not be convertible, which would pass unnoticed",
                    hint="set spark.sql.ansi.enabled=true for this session",
                )


def key_code(key: SparkColumn, kind: pa.DataType) -> SparkColumn:
    """A BIGINT code of a key: the value itself where it fits, else the hash that `engine.codes.key_codes` gives."""
    if is_integer(kind) or pa.types.is_boolean(kind):
        return key.cast(types.LongType())
    if pa.types.is_date32(kind):
        return f.unix_date(key).cast(types.LongType())
    if pa.types.is_timestamp(kind):
        return f.unix_micros(key)
    if pa.types.is_duration(kind):
        return f.call_function("div", key, f.expr(_MICRO))
    if is_float(kind):
        value = key.cast(types.DoubleType())
        return f.xxhash64(f.when(f.isnan(value), math.nan).when(value == 0.0, 0.0).otherwise(value))
    return f.xxhash64(key.cast(data_type(kind, "key")))


def spark_type(kind: pa.DataType) -> str:
    """The Spark SQL name of a scalar type."""
    if is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "TIMESTAMP"
    if pa.types.is_duration(kind):
        return "INTERVAL DAY TO SECOND"
    if is_text(kind):
        return "STRING"
    names = {
        pa.bool_(): "BOOLEAN",
        pa.int8(): "TINYINT",
        pa.int16(): "SMALLINT",
        pa.int32(): "INT",
        pa.int64(): "BIGINT",
        pa.float32(): "FLOAT",
        pa.float64(): "DOUBLE",
        pa.date32(): "DATE",
        pa.null(): "VOID",
    }
    return names[kind]


def literal(constant: Literal) -> str:
    """A constant of exactly its type."""
    value, kind = constant.value, constant.type
    name = spark_type(kind)
    match value:
        case None:
            return f"CAST(NULL AS {name})"
        case bool():
            return "TRUE" if value else "FALSE"
        case float():
            written = repr(value) if math.isfinite(value) else str(value)
            return f"CAST('{written}' AS {name})"
        case int() | decimal.Decimal():
            return f"CAST('{value}' AS {name})"
        case str():
            return _text_literal(value)
        case datetime.datetime():
            aware = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
            return f"timestamp_micros({(aware - _EPOCH) // _MICROSECOND}L)"
        case datetime.date():
            return f"DATE'{value.isoformat()}'"
        case datetime.timedelta():
            return _interval_literal(value // _MICROSECOND)


def _text_literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return "'" + escaped.replace("\n", "\\n").replace("\r", "\\r").replace("\0", "\\0") + "'"


def _interval_literal(micros: int) -> str:
    sign = "-" if micros < 0 else ""
    seconds, fraction = divmod(abs(micros), 1_000_000)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    day, hour = divmod(hours, 24)
    return f"INTERVAL '{sign}{day} {hour:02}:{minute:02}:{second:02}.{fraction:06}' DAY TO SECOND"


def _call(expr: Call, arguments: list[str]) -> str:
    function = expr.function
    kind = expr.arguments[0].type
    if function in _INFIX:
        if pa.types.is_timestamp(expr.type):
            # Spark adds intervals on the session's wall clock; without a zone there is nothing to jump.
            local = f"{_local(arguments[0])} {_INFIX[function]} {arguments[1]}"
            return _from_local(local)
        if function == "subtract" and pa.types.is_timestamp(kind):
            return f"({_local(arguments[0])} - {_local(arguments[1])})"
        if is_decimal(expr.type):
            return f"CAST(({f' {_INFIX[function]} '.join(arguments)}) AS {spark_type(expr.type)})"
        return f"({f' {_INFIX[function]} '.join(arguments)})"
    if function in _PREFIX:
        return f"{_PREFIX[function]}({', '.join(arguments)})"
    if function in _CLOCK:
        size, count = _CLOCK[function]
        return f"(pmod(unix_micros({arguments[0]}), {size * count}L) DIV {size}L)"
    if function in ("year", "month", "day"):
        date = arguments[0] if pa.types.is_date32(kind) else _date(arguments[0])
        return f"CAST({function}({date}) AS BIGINT)"
    return _special(function, arguments, expr)


def _special(function: str, arguments: list[str], expr: Call) -> str:
    value = arguments[0]
    match function:
        case "not":
            return f"(NOT {value})"
        case "negate":
            return f"(- {value})"
        case "is_null":
            return f"({value} IS NULL)"
        case "is_not_null":
            return f"({value} IS NOT NULL)"
        case "in":
            return f"({value} IN ({', '.join(arguments[1:])}))"
        case "like":
            return f"({value} LIKE {arguments[1]})"
        case "case":
            pairs = zip(arguments[:-1:2], arguments[1::2], strict=True)
            whens = " ".join(f"WHEN {condition} THEN {result}" for condition, result in pairs)
            return f"CASE {whens} ELSE {arguments[-1]} END"
        case "floor" | "ceil":
            # Spark's floor is a BIGINT; larger numbers have no fraction to lose.
            small = f"abs({value}) < 4503599627370496D"
            return f"CASE WHEN {small} THEN CAST({function}({value}) AS DOUBLE) ELSE {value} END"
        case "round":
            return _round(value, expr.arguments[1])
        case "sqrt":
            return f"CASE WHEN {value} >= 0D THEN sqrt({value}) END"
        case "length":
            return f"CAST(length({value}) AS BIGINT)"
        case "substring":
            return f"substring({value}, {_position(arguments[1])}, {_position(arguments[2])})"
        case "date":
            return _date(value)
    raise AssertionError(f"no Spark SQL for function '{function}'")


def _position(number: str) -> str:
    """A BIGINT as the INT that Spark's string functions count with."""
    return (
        f"CASE WHEN {number} > 2147483647L THEN 2147483647 WHEN {number} < -2147483648L THEN CAST(-2147483648L AS INT) "
        f"ELSE CAST({number} AS INT) END"
    )


def _round(value: str, digits: Expr) -> str:
    assert isinstance(digits, Literal), digits
    if digits.value is None:
        return "CAST(NULL AS DOUBLE)"
    assert isinstance(digits.value, int), digits
    places = digits.value
    if abs(places) > _MOST_DIGITS:
        raise ExpressionError(f"ROUND keeps at most {_MOST_DIGITS} digits, not {places}")
    scaled = f"abs({value}) {'*' if places >= 0 else '/'} 1e{abs(places)}"
    return f"CASE WHEN {scaled} < 1e15 THEN round({value}, {places}) + 0D ELSE {value} END"


def _date(time: str) -> str:
    """The UTC date of a timestamp."""
    return f"date_from_unix_date(CAST((unix_micros({time}) - pmod(unix_micros({time}), {_DAY}L)) DIV {_DAY}L AS INT))"


def _local(time: str) -> str:
    """A timestamp as the wall clock of UTC, without a zone."""
    return f"timestampadd(MICROSECOND, unix_micros({time}), {_EPOCH_LOCAL})"


def _from_local(time: str) -> str:
    """The time at which the wall clock of UTC shows this; `timestampdiff` would look at the session's clock for it."""
    return f"timestamp_micros((({time}) - {_EPOCH_LOCAL}) DIV {_MICRO})"


def _cast(value: str, source: pa.DataType, target: pa.DataType) -> str:
    if pa.types.is_timestamp(target) and is_text(source):
        # A text without a zone means UTC, whatever the session's zone.
        zoned = f"rlike(trim({value}), '(Z|UTC|GMT|[0-9]{{1,2}}:[0-9]{{2}}.*[+-][0-9:]+)$')"
        unzoned = _from_local(f"CAST({value} AS TIMESTAMP_NTZ)")
        return f"CASE WHEN {zoned} THEN CAST({value} AS TIMESTAMP) ELSE {unzoned} END"
    if pa.types.is_timestamp(target) and pa.types.is_date32(source):
        return f"timestamp_micros(unix_date({value}) * {_DAY}L)"
    if pa.types.is_timestamp(source) and is_text(target):
        return f"CAST({_local(value)} AS STRING)"
    if pa.types.is_timestamp(source) and pa.types.is_date32(target):
        return _date(value)
    return f"CAST({value} AS {spark_type(target)})"
