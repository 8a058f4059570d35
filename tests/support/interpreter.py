"""A naive interpreter of expressions, one row at a time in plain Python; it shares no code with the engine.

It is simple rather than fast. Values are None, bool, int, float, Decimal, str and date; timestamps and intervals are
int microseconds. NULL is None and logic is three-valued. It raises an ExpressionError for each value that the engine
refuses (an overflow, a cast that does not fit). Comparisons of sums over several relations do not overflow.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable
from decimal import ROUND_DOWN, ROUND_HALF_UP, Context, Decimal, localcontext
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from anabranch.errors import ExpressionError
from anabranch.functions.patterns import regex
from anabranch.lang.expr import Call, Cast, Column, Expr, Literal, compares_exactly

Value: TypeAlias = Any

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
_DAY = 86_400_000_000
_WIDE = Context(prec=100)
_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
_MOST_SECONDS = 9_223_372_036_854


def interpret(expr: Expr, row: Callable[[Column], Value], is_unlimited: bool = False) -> Value:
    """Returns the value of the expression for one row; integers are unlimited with `is_unlimited`."""
    match expr:
        case Column():
            return row(expr)
        case Literal():
            return plain(expr.value)
        case Cast():
            return _cast(interpret(expr.argument, row, is_unlimited), expr.argument.type, expr.type)
        case Call(function="and" | "or"):
            return _connect(expr, row)
        case Call(function="case"):
            *branches, otherwise = expr.arguments
            for condition, value in zip(branches[::2], branches[1::2], strict=True):
                if interpret(condition, row) is True:
                    return interpret(value, row)
            return interpret(otherwise, row)
        case Call(function="coalesce"):
            for argument in expr.arguments:
                if (value := interpret(argument, row)) is not None:
                    return value
            return None
        case Call(own=own) if own is not None:
            given = [interpret(argument, row) for argument in expr.arguments]
            if own.skips_nulls and any(value is None for value in given):
                return None
            arrays = [
                pa.array([value], pa.int64() if _is_counted(argument.type) else argument.type).cast(argument.type)
                for value, argument in zip(given, expr.arguments, strict=True)
            ]
            return column_values(pa.array(own.code(*arrays)).cast(expr.type))[0]
        case Call():
            if expr.function in ("divide", "modulo") and not interpret(expr.arguments[1], row):
                return None
            is_unlimited = is_unlimited or compares_exactly(expr)
            values: list[Value] = []
            for argument in expr.arguments:
                values.append(interpret(argument, row, is_unlimited))
                if values[-1] is None and expr.function not in ("greatest", "least", "is_null", "is_not_null", "in"):
                    return None
            return _call(expr, values, is_unlimited)


def _is_counted(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_duration(kind))


def plain(value: object) -> Value:
    """Converts a Python value to the interpreter's form: times and intervals become microseconds."""
    match value:
        case datetime.datetime():
            aware = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
            return (aware - _EPOCH) // _MICROSECOND
        case datetime.timedelta():
            return value // _MICROSECOND
        case _:
            return value


def column_values(values: pa.Array | pa.ChunkedArray) -> list[Value]:
    """Converts an Arrow column to the interpreter's values."""
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    elif pa.types.is_duration(values.type):
        values = values.cast(pa.duration("us")).cast(pa.int64())
    elif pa.types.is_list(values.type) and _is_counted(values.type.value_type):
        return [None if each is None else column_values(each.values) for each in values]
    return list(values.to_pylist())


def order(left: Value, right: Value) -> int:
    """Returns -1, 0 or 1 as left is below, equal to or above right; NaN is equal to itself and above all numbers."""
    left_nan, right_nan = _is_nan(left), _is_nan(right)
    if left_nan or right_nan:
        return int(left_nan) - int(right_nan)
    if isinstance(left, str):
        left, right = left.encode(), right.encode()
    return int(left > right) - int(left < right)


def _is_nan(value: Value) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _connect(expr: Call, row: Callable[[Column], Value]) -> bool | None:
    settled: bool = expr.function == "or"
    unknown = False
    for argument in expr.arguments:
        value = interpret(argument, row)
        if value is not None and bool(value) == settled:
            return settled
        unknown = unknown or value is None
    return None if unknown else not settled


def _call(expr: Call, values: list[Value], is_unlimited: bool) -> Value:
    function = expr.function
    if function == "is_null":
        return values[0] is None
    if function == "is_not_null":
        return values[0] is not None
    if function in ("greatest", "least"):
        return _extreme(values, 1 if function == "greatest" else -1)
    if function == "in":
        return _member(values[0], values[1:])
    if any(value is None for value in values):
        return None
    if function in _COMPARISONS:
        return _COMPARISONS[function](order(*values))
    if function in ("divide", "modulo") and isinstance(values[0], Decimal):
        return _decimal_quotient(function, values[0], values[1], expr)
    if function in _FUNCTIONS:
        return _FUNCTIONS[function](*values)
    if function in _OF_DATES:
        is_date = pa.types.is_date32(expr.arguments[0].type)
        return _OF_DATES[function](values[0] if is_date else _moment(values[0]).date())
    if function in ("year", "month", "day") and pa.types.is_date32(expr.arguments[0].type):
        return getattr(values[0], function)
    if function in ("year", "month", "day", "hour", "minute", "second"):
        return getattr(_moment(values[0]), function)
    value = _arithmetic(function, values)
    return value if is_unlimited else _fitting(value, expr)


def _extreme(values: list[Value], sign: int) -> Value:
    best = None
    for value in values:
        if value is not None and (best is None or sign * order(value, best) > 0):
            best = value
    return best


def _member(value: Value, options: list[Value]) -> bool | None:
    if value is None:
        return None
    if any(option is not None and order(value, option) == 0 for option in options):
        return True
    return None if None in options else False


def _arithmetic(function: str, values: list[Value]) -> Value:
    with localcontext(_WIDE):
        match function:
            case "add":
                return values[0] + values[1]
            case "subtract":
                return values[0] - values[1]
            case "multiply":
                return values[0] * values[1]
            case "negate":
                return -values[0]
            case "timestamp_seconds" | "timestamp_millis":
                return values[0] * (1_000_000 if function == "timestamp_seconds" else 1_000)
            case "abs":
                return abs(values[0])
    raise AssertionError(f"no function '{function}'")


def _fitting(value: Value, expr: Expr) -> Value:
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ExpressionError(f"expression '{expr}' overflows")
    return value


def _divide(left: float, right: float) -> float | None:
    return None if right == 0 else left / right


def _modulo(left: Value, right: Value) -> Value:
    if right == 0:
        return None
    if isinstance(left, int):
        return int(math.copysign(1, left)) * (abs(left) % abs(right))
    return math.nan if math.isinf(left) or _is_nan(left) or _is_nan(right) else math.fmod(left, right)


def _decimal_quotient(function: str, left: Decimal, right: Decimal, expr: Expr) -> Value:
    if right == 0:
        return None
    with localcontext(Context(prec=200)) as context:
        if function == "modulo":
            return left % right
        value = (left / right).quantize(Decimal(1).scaleb(-expr.type.scale), ROUND_HALF_UP, context)
    if abs(value) >= Decimal(10) ** (expr.type.precision - expr.type.scale):
        raise ExpressionError(f"expression '{expr}' overflows")
    return value


def _truncated(unit: str, micros: int) -> int:
    time = _moment(micros)
    day = time.replace(hour=0, minute=0, second=0, microsecond=0)
    starts = {
        "microsecond": time,
        "millisecond": time.replace(microsecond=time.microsecond // 1000 * 1000),
        "second": time.replace(microsecond=0),
        "minute": time.replace(second=0, microsecond=0),
        "hour": time.replace(minute=0, second=0, microsecond=0),
        "day": day,
        "month": day.replace(day=1),
        "quarter": day.replace(day=1, month=(day.month - 1) // 3 * 3 + 1),
        "year": day.replace(day=1, month=1),
    }
    if unit == "week":
        return int(plain(day)) - day.weekday() * 86_400_000_000
    return int(plain(starts[unit]))


def _extracted(text: str, pattern: str, group: int) -> str:
    found = re.search(regex(pattern).python, text, re.ASCII)
    return (found[group] or "") if found else ""


def _substituted(text: str, pattern: str, by: str) -> str:
    def replaced(found: re.Match[str]) -> str:
        return re.sub(r"\$(\d)", lambda reference: found[int(reference[1])] or "", by)

    return re.sub(regex(pattern).python, replaced, text, flags=re.ASCII)


def _element(value: Value, place: Value) -> Value:
    if isinstance(value, list) and isinstance(place, str):
        return dict(reversed(value)).get(place)
    return value[place] if 0 <= place < len(value) else None


def _round(value: float, digits: int) -> float:
    if not math.isfinite(value) or abs(Decimal(value).scaleb(digits, _WIDE)) >= Decimal(10) ** 15:
        return value
    unit = Decimal(1).scaleb(-digits)
    return float(Decimal(repr(value)).quantize(unit, ROUND_HALF_UP, _WIDE)) + 0.0


def _whole(function: Callable[[float], int], value: float) -> float:
    return float(function(value)) if math.isfinite(value) else value


def _power(base: float, exponent: float) -> float:
    if _is_nan(exponent) or (abs(base) == 1 and math.isinf(exponent)):
        return math.nan
    try:
        return math.pow(base, exponent)
    except OverflowError:
        odd = exponent == math.floor(exponent) and math.fmod(exponent, 2) != 0
        return -math.inf if base < 0 and odd else math.inf
    except ValueError:
        if base == 0:
            odd = exponent == math.floor(exponent) and math.fmod(exponent, 2) != 0
            return math.copysign(math.inf, base) if odd else math.inf
        return math.nan


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def _substring(text: str, start: int, length: int) -> str:
    start, length = (max(-(2**31), min(bound, 2**31 - 1)) for bound in (start, length))
    begin = start - 1 if start > 0 else len(text) + start if start < 0 else 0
    return text[max(begin, 0) : max(begin + length, 0)] if length > 0 else ""


def _like(text: str, pattern: str) -> bool:
    regex, characters = "", iter(pattern)
    for character in characters:
        if character == "\\":
            following = next(characters, "")
            if following not in ("%", "_", "\\"):
                raise ExpressionError(f"pattern '{pattern}' has a stray backslash")
            regex += re.escape(following)
        else:
            regex += {"%": ".*", "_": "."}.get(character, re.escape(character))
    return re.fullmatch(regex, text, re.DOTALL) is not None


def _moment(micros: int) -> datetime.datetime:
    return _EPOCH + datetime.timedelta(microseconds=micros)


_COMPARISONS: dict[str, Callable[[int], bool]] = {
    "equal": lambda sign: sign == 0,
    "not_equal": lambda sign: sign != 0,
    "less": lambda sign: sign < 0,
    "less_equal": lambda sign: sign <= 0,
    "greater": lambda sign: sign > 0,
    "greater_equal": lambda sign: sign >= 0,
}

_FUNCTIONS: dict[str, Callable[..., Value]] = {
    "divide": _divide,
    "modulo": _modulo,
    "not": lambda value: not value,
    "like": _like,
    "floor": lambda value: _whole(math.floor, value),
    "ceil": lambda value: _whole(math.ceil, value),
    "round": _round,
    "sqrt": lambda value: None if value < 0 else math.sqrt(value),
    "exp": _exp,
    "ln": lambda value: None if value <= 0 else math.log(value),
    "power": _power,
    "lower": str.lower,
    "upper": str.upper,
    "trim": lambda text: text.strip(" "),
    "ltrim": lambda text: text.lstrip(" "),
    "rtrim": lambda text: text.rstrip(" "),
    "length": len,
    "substring": _substring,
    "concat": lambda *texts: "".join(texts),
    "starts_with": str.startswith,
    "ends_with": str.endswith,
    "contains": lambda text, part: part in text,
    "replace": lambda text, old, new: text.replace(old, new) if old else text,
    "date_trunc": _truncated,
    "rlike": lambda text, pattern: re.search(regex(pattern).python, text, re.ASCII) is not None,
    "regexp_extract": _extracted,
    "regexp_replace": _substituted,
    "field": lambda value, name: value[name],
    "window": lambda start, end: {"start": start, "end": end},
    "element": _element,
    "size": len,
    "unix_micros": lambda micros: micros,
    "timestamp_micros": lambda micros: micros,
    "date": lambda micros: _moment(micros).date(),
}


_OF_DATES: dict[str, Callable[[datetime.date], int]] = {
    "quarter": lambda day: (day.month + 2) // 3,
    "dayofweek": lambda day: day.isoweekday() % 7 + 1,
    "dayofyear": lambda day: day.timetuple().tm_yday,
    "weekofyear": lambda day: day.isocalendar().week,
}


# --- casts -----------------------------------------------------------------------------------------------------------


def _cast(value: Value, source: pa.DataType, target: pa.DataType) -> Value:
    if value is None or source == target:
        return value
    try:
        result = _converted(value, source, target)
    except (ValueError, OverflowError, ArithmeticError) as error:
        raise ExpressionError(f"'{value}' is not a {target}") from error
    return result


def _converted(value: Value, source: pa.DataType, target: pa.DataType) -> Value:
    time = pa.types.is_timestamp(source)
    if pa.types.is_string(target) or pa.types.is_large_string(target):
        return _text(value, source)
    if isinstance(value, str):
        value = value.strip("".join(map(chr, range(33))) + "\x7f")
    if pa.types.is_boolean(target):
        return _truth(value) if isinstance(value, str) else value != 0
    if pa.types.is_date32(target):
        return _moment(value if time else _instant(value, any_clock=True)).date()
    if pa.types.is_timestamp(target):
        return value if time else _micros(value)
    if pa.types.is_integer(target):
        whole = value // 1_000_000 if time else _integer(value)
        if not -(2 ** (target.bit_width - 1)) <= whole < 2 ** (target.bit_width - 1):
            raise ValueError(whole)
        return whole
    if pa.types.is_floating(target):
        if pa.types.is_float32(target) and isinstance(value, Decimal):
            return _nearest_float32(value)
        number = float(value) / 1e6 if time else _number(value)
        return pa.scalar(number, pa.float64()).cast(target, safe=False).as_py()
    return _decimal(Decimal(value).scaleb(-6) if time else value, target)


def _text(value: Value, source: pa.DataType) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if pa.types.is_timestamp(source):
        if not _FIRST <= value <= _LAST:
            raise ValueError(value)
        written = _moment(value).replace(tzinfo=None).isoformat(sep=" ")
        return written.rstrip("0") if value % 1_000_000 else written
    if isinstance(value, float):
        narrow = pa.types.is_float32(source)
        return _java_float(value, str(np.float32(value)) if narrow else repr(value))
    if isinstance(value, Decimal):
        return f"{value:f}"
    return str(value)


def _java_float(value: float, shortest: str) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    sign = "-" if math.copysign(1, value) < 0 else ""
    digits = abs(Decimal(shortest)).normalize()
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        written = f"{digits:f}"
        return sign + (written if "." in written else written + ".0")
    mantissa = "".join(map(str, digits.as_tuple().digits))
    return f"{sign}{mantissa[0]}.{mantissa[1:] or '0'}E{digits.adjusted()}"


def _truth(text: str) -> bool:
    if text.lower() in ("t", "true", "y", "yes", "1"):
        return True
    if text.lower() in ("f", "false", "n", "no", "0"):
        return False
    raise ValueError(text)


def _integer(value: Value) -> int:
    if isinstance(value, str) and not re.fullmatch(r"[+-]?[0-9]+", value):
        raise ValueError(value)
    return int(value)


def _number(value: Value) -> float:
    if isinstance(value, str) and not (_is_decimal(value) or re.fullmatch(r"(?i)[+-]?inf(inity)?|nan", value)):
        raise ValueError(value)
    return float(value)


def _is_decimal(text: str) -> bool:
    return re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text) is not None


def _decimal(value: Value, target: pa.DataType) -> Decimal | None:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str) and not _is_decimal(value):
        raise ValueError(value)
    exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    rounded = exact.quantize(Decimal(1).scaleb(-target.scale), ROUND_HALF_UP, Context(prec=1000))
    if rounded.copy_abs() >= Decimal(10) ** (target.precision - target.scale):
        raise ValueError(value)
    return rounded


def _nearest_float32(value: Decimal) -> float:
    near = np.float32(value)
    around = (near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf)))
    finite = [one for one in around if np.isfinite(one)]
    # Of two equally near values, the one whose last bit is zero.
    return float(min(finite, key=lambda one: (abs(_WIDE.subtract(Decimal(float(one)), value)), one.view(np.int32) & 1)))


def _micros(value: Value) -> int:
    match value:
        case datetime.date():
            return (value.toordinal() - _EPOCH.toordinal()) * _DAY
        case str():
            return _instant(value, any_clock=False)
    if not abs(float(value)) < _MOST_SECONDS:
        raise ValueError(value)
    match value:
        case Decimal():
            return int(_WIDE.multiply(value, Decimal(1_000_000)).to_integral_value(ROUND_DOWN))
        case float():
            return int(value * 1e6)
        case _:
            return int(value) * 1_000_000


def _instant(text: str, any_clock: bool) -> int:
    date, space, clock = re.sub(r"^([0-9-]*)T", r"\1 ", text).partition(" ")
    if not re.fullmatch(r"[0-9]{4}(-[0-9]{1,2}){0,2}", date) or (space and date.count("-") < 2):
        raise ValueError(text)
    year, month, day = (*map(int, date.split("-")), 1, 1)[:3]
    start = _micros(datetime.date(year, month, day))
    if any_clock or not space:
        return start
    form = r"(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d*))? *(?:Z|UTC|GMT|([+-])(\d{4}|\d{1,2}(?::\d\d)?))?)?"
    match = re.fullmatch(form, clock, re.ASCII)
    if match is None:
        raise ValueError(text)
    hour, minute, second, fraction, sign, zone = match.groups("")
    moment = datetime.time(int(hour), int(minute), int(second or 0), int(fraction.ljust(6, "0")[:6]))
    since_midnight = ((moment.hour * 60 + moment.minute) * 60 + moment.second) * 1_000_000 + moment.microsecond
    if len(zone) == 4 and ":" not in zone:
        zone = f"{zone[:2]}:{zone[2:]}"
    hours, minutes = (int(part or 0) for part in (*zone.split(":"), "")[:2])
    if minutes > 59 or 60 * hours + minutes > 18 * 60:
        raise ValueError(text)
    ahead = (60 * hours + minutes) * 60_000_000
    return start + since_midnight - (-ahead if sign == "-" else ahead)
