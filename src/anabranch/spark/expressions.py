"""Translates expressions to Spark SQL text with the semantics of the engine, to compare both (`spark/scans`).

The text is for sessions in ANSI mode (Spark's default), where overflow and invalid casts are errors; where CQL requires
NULL instead, the `try_` functions are used. Where Spark accepts more than the engine, the text raises an error: Spark
parses times with named zones, and truncates seconds that no timestamp can hold.

Invariant: the result does not depend on the session's time zone. Dates and clock fields are computed from microseconds
since the epoch, and a wall clock without a zone is in UTC.
"""

from __future__ import annotations

import datetime
import decimal
import math
import re
from collections.abc import Callable

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as f

from anabranch.engine.evaluate.casts import (
    DATE_FORM,
    DAY,
    FIRST_DAY,
    FLOAT_FORM,
    LAST_DAY,
    NUMBER_FORM,
    SECONDS_LIMIT,
    TIMESTAMP_FORM,
)
from anabranch.functions.patterns import regex
from anabranch.functions.texts import TRUNCATED
from anabranch.lang.expr import Call, Cast, Column, Expr, Literal
from anabranch.lang.schema import TIMESTAMP, is_decimal, is_float, is_integer, is_text, type_name

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
_EPOCH_LOCAL = "TIMESTAMP_NTZ'1970-01-01 00:00:00'"
_MICRO = "INTERVAL '0 00:00:00.000001' DAY TO SECOND"
_EXACT_DIGITS = 34
"""Spark negates decimals with this many digits exactly; it rounds longer ones."""

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
    "timestamp_seconds": "timestamp_seconds",
    "timestamp_millis": "timestamp_millis",
    "timestamp_micros": "timestamp_micros",
}
_CLOCK = {"hour": (3_600_000_000, 24), "minute": (60_000_000, 60), "second": (1_000_000, 60)}


def quote(name: str) -> str:
    """Returns a name as a Spark identifier."""
    return "`" + name.replace("`", "``") + "`"


def to_spark_sql(expr: Expr, column: Callable[[Column], str]) -> str:
    """Returns the expression as Spark SQL; `column` returns the text of a column reference."""
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
    """Returns the expression over the columns of one frame."""
    if isinstance(expr, Column) and not _is_wall_clock(expr.type):
        return f.col(quote(expr.name))
    return f.expr(to_spark_sql(expr, of_frame))


def of_frame(column: Column) -> str:
    """Returns a column of the frame; a wall clock is converted to the instant at which UTC shows it.

    By default Spark would use the session's zone, where two wall-clock times may be one instant.
    """
    name = quote(column.name)
    return _from_local(name) if _is_wall_clock(column.type) else name


def _is_wall_clock(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is None


def spark_type(kind: pa.DataType) -> str:
    """Returns the Spark SQL name of a scalar type."""
    if is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "TIMESTAMP_LTZ"
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
    """Returns a constant of exactly its type."""
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
            # Spark adds intervals on the session's wall clock, which jumps at daylight saving changes.
            moved = f"unix_micros({arguments[0]}) {_INFIX[function]} (({arguments[1]}) DIV {_MICRO})"
            return f"timestamp_micros({moved})"
        if function == "subtract" and pa.types.is_timestamp(kind):
            return f"({_local(arguments[0])} - {_local(arguments[1])})"
        if is_decimal(expr.type):
            return f"CAST(({f' {_INFIX[function]} '.join(arguments)}) AS {spark_type(expr.type)})"
        return f"({f' {_INFIX[function]} '.join(arguments)})"
    if function in ("divide", "modulo") and is_decimal(expr.type):
        # Not try_divide: it also returns NULL for a quotient that does not fit.
        sign = "/" if function == "divide" else "%"
        return f"CAST({arguments[0]} {sign} nullif({arguments[1]}, 0) AS {spark_type(expr.type)})"
    if function in _PREFIX:
        return f"{_PREFIX[function]}({', '.join(arguments)})"
    if function in _CLOCK:
        size, count = _CLOCK[function]
        return f"(pmod(unix_micros({arguments[0]}), {size * count}L) DIV {size}L)"
    if function in ("year", "month", "day", "quarter", "dayofweek", "dayofyear", "weekofyear"):
        date = arguments[0] if pa.types.is_date32(kind) else _date(arguments[0])
        return f"CAST({function}({date}) AS BIGINT)"
    return _special(function, arguments, expr)


def _special(function: str, arguments: list[str], expr: Call) -> str:
    value = arguments[0]
    match function:
        case "not":
            return f"(NOT {value})"
        case "negate" if is_long_decimal(expr.type):
            written = f"CAST({value} AS STRING)"
            turned = f"CASE WHEN {value} < 0 THEN ltrim('-', {written}) ELSE concat('-', {written}) END"
            return f"CAST({turned} AS {spark_type(expr.type)})"
        case "negate":
            return f"(- {value})"
        case "abs" if is_long_decimal(expr.type):
            return f"CAST(ltrim('-', CAST({value} AS STRING)) AS {spark_type(expr.type)})"
        case "abs":
            return f"abs({value})"
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
            # Spark's floor returns a BIGINT; larger numbers have no fraction to lose.
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
        case "date_trunc":
            return _truncated(expr.arguments[0], arguments[1])
        case "rlike":
            return f"rlike({value}, {_java_pattern(expr.arguments[1])})"
        case "regexp_extract":
            return f"regexp_extract({value}, {_java_pattern(expr.arguments[1])}, CAST({arguments[2]} AS INT))"
        case "regexp_replace":
            return f"regexp_replace({value}, {_java_pattern(expr.arguments[1])}, {arguments[2]})"
        case "field":
            name = expr.arguments[1]
            assert isinstance(name, Literal)
            return f"({value}).{quote(str(name.value))}"
        case "element" if pa.types.is_map(expr.arguments[0].type):
            return f"try_element_at({value}, {arguments[1]})"
        case "element":
            return f"get({value}, {_position(arguments[1])})"
        case "size":
            return f"CAST(array_size({value}) AS BIGINT)"
    raise AssertionError(f"no Spark SQL for function '{function}'")


def _java_pattern(pattern: Expr) -> str:
    """Returns a pattern in Java's syntax; its dot excludes only the line feed."""
    assert isinstance(pattern, Literal)
    return "CAST(NULL AS STRING)" if pattern.value is None else _text_literal(f"(?d){regex(str(pattern.value)).java}")


def _truncated(unit: Expr, time: str) -> str:
    """Returns the start of a time's unit, in UTC."""
    assert isinstance(unit, Literal)
    size = TRUNCATED[str(unit.value)]
    if size is None:
        return f"timestamp_micros(unix_date(trunc({_date(time)}, '{str(unit.value).upper()}')) * {DAY}L)"
    offset = 3 * DAY if unit.value == "week" else 0
    return f"timestamp_micros(unix_micros({time}) - pmod(unix_micros({time}) + {offset}L, {size}L))"


def _position(number: str) -> str:
    """Converts a BIGINT to the INT of Spark's string functions."""
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
    scaled = f"abs({value}) {'*' if places >= 0 else '/'} 1e{abs(places)}"
    return f"CASE WHEN {scaled} < 1e15 THEN round({value}, {places}) + 0D ELSE {value} END"


def _date(time: str) -> str:
    """Returns the UTC date of a timestamp."""
    micros = f"unix_micros({time})"
    return f"date_from_unix_date(CAST({micros} DIV {DAY}L - IF({micros} % {DAY}L < 0L, 1L, 0L) AS INT))"


def _local(time: str) -> str:
    """Returns a timestamp as the UTC wall clock, without a zone."""
    return f"timestampadd(MICROSECOND, unix_micros({time}), {_EPOCH_LOCAL})"


def _from_local(time: str) -> str:
    """Returns the instant of a UTC wall clock; `timestampdiff` would use the session's clock."""
    return f"timestamp_micros((({time}) - {_EPOCH_LOCAL}) DIV {_MICRO})"


def is_long_decimal(kind: pa.DataType) -> bool:
    return is_decimal(kind) and bool(kind.precision > _EXACT_DIGITS)


def _cast(value: str, source: pa.DataType, target: pa.DataType) -> str:
    if _is_wall_clock(source):
        source = TIMESTAMP  # as converted by `of_frame`
    if source == target:
        return value
    if is_text(source):
        return _read(value, target)
    if pa.types.is_timestamp(target):
        return _instant(value, source)
    if is_text(target) and (pa.types.is_timestamp(source) or pa.types.is_date32(source)):
        return _written_time(value, source)
    if pa.types.is_timestamp(source) and pa.types.is_date32(target):
        return _date(value)
    if is_float(source) and target == pa.int64():
        # Spark casts 2**63 to the largest BIGINT instead of failing.
        return _refused(f"{value} >= 9223372036854775808D", value, target, f"CAST({value} AS BIGINT)")
    if is_decimal(source) and is_integer(target):
        # Through BIGINT: Spark's direct cast to smaller integers rounds long fractions.
        value = f"CAST({value} AS BIGINT)"
    return f"CAST({value} AS {spark_type(target)})"


def _read(text: str, target: pa.DataType) -> str:
    """Parses a text as a value, if it has the plain form of one."""
    form = (
        NUMBER_FORM
        if is_decimal(target)
        else FLOAT_FORM
        if is_float(target)
        else rf"(?!0000){DATE_FORM}"
        if pa.types.is_date32(target)
        else rf"(?!0000){TIMESTAMP_FORM}"
        if pa.types.is_timestamp(target)
        else None
    )
    if form is None:
        return f"CAST({text} AS {spark_type(target)})"
    blanks = r"[\x00-\x20\x7f]*"
    plain = re.sub(r"\?P<\w+>", "", rf"\A{blanks}(?:{form}){blanks}\z")
    refused = f"NOT rlike({text}, {_text_literal(plain)})"
    if not pa.types.is_timestamp(target):
        return _refused(refused, text, target, f"CAST({text} AS {spark_type(target)})")
    # A text without a zone is in UTC, regardless of the session's zone.
    zoned = f"rlike({text}, {_text_literal(rf'(?:Z|UTC|GMT|:.*[+-][0-9:]+){blanks}{chr(92)}z')})"
    unzoned = _from_local(f"CAST({text} AS TIMESTAMP_NTZ)")
    return _refused(refused, text, target, f"CASE WHEN {zoned} THEN CAST({text} AS TIMESTAMP_LTZ) ELSE {unzoned} END")


def _instant(value: str, source: pa.DataType) -> str:
    """Returns the timestamp of a date's first instant, or of a number of seconds."""
    if pa.types.is_date32(source):
        return f"timestamp_micros(unix_date({value}) * {DAY}L)"
    if pa.types.is_timestamp(source):
        return value
    refused = f"CAST({value} AS DOUBLE) >= {SECONDS_LIMIT}D OR CAST({value} AS DOUBLE) <= -{SECONDS_LIMIT}D"
    return _refused(refused, value, TIMESTAMP, f"CAST({value} AS TIMESTAMP_LTZ)")


def _written_time(value: str, source: pa.DataType) -> str:
    """Returns a date or timestamp as text; only years of four digits are supported."""
    if pa.types.is_date32(source):
        place, first, last, written = f"unix_date({value})", FIRST_DAY, LAST_DAY, f"CAST({value} AS STRING)"
    else:
        place, first, last = f"unix_micros({value})", FIRST_DAY * DAY, LAST_DAY * DAY + DAY - 1
        written = f"CAST({_local(value)} AS STRING)"
    return _refused(f"{place} < {first}L OR {place} > {last}L", place, pa.string(), written)


def _refused(condition: str, value: str, target: pa.DataType, otherwise: str) -> str:
    """Returns the text `otherwise`, with an error where the condition is true."""
    said = f"concat('\\'', CAST({value} AS STRING), '\\' is not a {type_name(target)}')"
    return f"CASE WHEN {condition} THEN raise_error({said}) ELSE {otherwise} END"
