"""The functions of CQL: their spellings, the types they take and give, and the coercions between.

`bind_call` turns a function and typed arguments into an expression whose arguments have exactly the types that the
kernel of that function takes, so that evaluators need no type rules. `FUNCTIONS` holds the canonical names, the only
values of `Call.function`; `SPELLINGS` maps what a user may write in call syntax to them. NULLIF and IF are spelled but
have no kernel: they become `case`. Rules raise ValueError(message) or ValueError(message, hint); whoever knows the
position in the text turns that into an error with a caret.

Law: coercion widens, it never narrows. Integers meet in bigint, integers and decimals in a decimal, anything with a
float in double, dates and timestamps in timestamp; text meets only text. A literal with a point is a double, except
beside a decimal, where it is the decimal it spells.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import pyarrow as pa

from anabranch.expr import AggregateCall, Call, Cast, Column, Expr, Literal
from anabranch.schema import (
    INTERVAL,
    TIMESTAMP,
    is_decimal,
    is_float,
    is_integer,
    is_nested,
    is_text,
    type_name,
)

Arguments: TypeAlias = tuple[Expr, ...]
Rule: TypeAlias = Callable[[str, Arguments], Expr]

BIGINT = pa.int64()
DOUBLE = pa.float64()
STRING = pa.string()
BOOLEAN = pa.bool_()
DATE = pa.date32()
MAX_DIGITS = 38
WHOLE_TEXT = 2**31 - 1
"""The length SUBSTRING takes when none is given."""

_DIGITS_OF_INTEGER = {"int8": 3, "int16": 5, "int32": 10, "int64": 20, "uint8": 3, "uint16": 5, "uint32": 10}
_NULL, _OTHER = "null", "other"
_CAST_HINT = "use CAST(… AS type)"
_SYMBOLS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "modulo": "%", "negate": "-"}


def kind_of(type_: pa.DataType) -> str:
    """The family of a type: integer, float, decimal, text, boolean, date, timestamp, interval, null, or other."""
    families = (
        (is_integer, "integer"),
        (is_float, "float"),
        (is_decimal, "decimal"),
        (is_text, "text"),
        (pa.types.is_boolean, "boolean"),
        (pa.types.is_date32, "date"),
        (pa.types.is_timestamp, "timestamp"),
        (pa.types.is_duration, "interval"),
        (pa.types.is_null, _NULL),
    )
    return next((name for belongs, name in families if belongs(type_)), _OTHER)


def common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """The type two values are compared in.

    >>> str(common_type(pa.int32(), pa.float32()))
    'double'
    """
    kinds = {kind_of(left), kind_of(right)}
    if _NULL in kinds:
        return _canonical(right if kind_of(left) == _NULL else left)
    if _OTHER in kinds:
        raise _not_computable(left if kind_of(left) == _OTHER else right)
    if len(kinds) == 1 and kinds != {"decimal"}:
        return _canonical(left)
    if kinds <= {"integer", "decimal"}:
        one, other = _as_decimal(left), _as_decimal(right)
        scale = max(one.scale, other.scale)
        return _decimal(max(one.precision - one.scale, other.precision - other.scale) + scale, scale)
    if kinds <= {"integer", "decimal", "float"}:
        return DOUBLE
    if kinds == {"date", "timestamp"}:
        return TIMESTAMP
    raise ValueError(
        f"types {type_name(left)} and {type_name(right)} cannot be compared or combined", _conversion_hint(kinds)
    )


def coerce(expr: Expr, type_: pa.DataType) -> Expr:
    """The expression in a wider type; literals are converted here and now."""
    if expr.type == type_:
        return expr
    if isinstance(expr, Literal):
        if expr.value is None:
            return Literal(None, type_)
        if is_float(type_) and isinstance(expr.value, int | decimal.Decimal):
            return Literal(float(expr.value), type_)
        if is_integer(type_) and isinstance(expr.value, int):
            return Literal(expr.value, type_)
        if is_decimal(type_) and isinstance(expr.value, int | decimal.Decimal):
            return Literal(_scaled(decimal.Decimal(expr.value), type_.scale), type_)
        if kind_of(type_) == "timestamp" and kind_of(expr.type) == "date":
            assert isinstance(expr.value, datetime.date)
            midnight = datetime.time(tzinfo=datetime.UTC)
            return Literal(datetime.datetime.combine(expr.value, midnight), type_)
    return Cast(expr, type_)


def without_widening(expr: Expr) -> Expr:
    """The expression below casts that keep every value distinct, such as int to bigint or date to timestamp."""
    while isinstance(expr, Cast) and _is_lossless(expr.argument.type, expr.type):
        expr = expr.argument
    return expr


def bind_call(name: str, arguments: Arguments) -> Expr:
    """The typed call of a function, by canonical name or by any spelling of it."""
    lowered = name.lower()
    canonical = lowered if lowered in FUNCTIONS else SPELLINGS.get(lowered, "")
    rule = FUNCTIONS.get(canonical) or _SUGAR.get(canonical)
    if rule is None:
        raise ValueError(f"unknown function '{name}'")
    return rule(canonical, arguments)


def bind_cast(expr: Expr, type_: pa.DataType) -> Expr:
    """The expression as another type, for the pairs of types that Spark's ANSI mode converts."""
    if expr.type == type_:
        return expr
    if isinstance(expr, Literal) and expr.value is None:
        return Literal(None, type_)
    source, target = kind_of(expr.type), kind_of(type_)
    if target != source and target not in _CASTS.get(source, frozenset()):
        raise ValueError(f"{type_name(expr.type)} cannot be cast to {type_name(type_)}")
    return Cast(expr, type_)


def bind_aggregate(name: str, argument: Expr | None) -> AggregateCall:
    """COUNT, SUM, MIN, MAX or AVG with its argument coerced and its result typed."""
    function = name.lower()
    if function == "count":
        return AggregateCall("count", argument, BIGINT)
    if argument is None:
        raise ValueError(f"'{name.upper()}' needs an argument", "only COUNT takes *")
    kind = kind_of(argument.type)
    if function in {"min", "max"}:
        if kind in {_OTHER, _NULL}:
            raise _not_computable(argument.type)
        return AggregateCall(function, argument, argument.type)
    if kind not in {"integer", "float", "decimal"}:
        raise ValueError(f"'{name.upper()}' expects a number, found {type_name(argument.type)}")
    if function == "avg":
        return AggregateCall("avg", coerce(argument, DOUBLE), DOUBLE)
    argument = coerce(argument, _canonical(argument.type))
    if kind == "decimal":
        digits = min(MAX_DIGITS, argument.type.precision + 10)
        return AggregateCall("sum", argument, pa.decimal128(digits, argument.type.scale))
    return AggregateCall("sum", argument, argument.type)


def type_named(name: str, parameters: tuple[int, ...] = ()) -> pa.DataType:
    """The type of an SQL type name, such as BIGINT or DECIMAL(10, 2)."""
    lowered = name.lower()
    if lowered in {"decimal", "numeric", "dec"}:
        precision, scale = (*parameters, *(10, 0)[len(parameters) :])[:2]
        if len(parameters) > 2 or not (1 <= precision <= MAX_DIGITS and 0 <= scale <= precision):
            raise ValueError(
                f"'{name.upper()}' expects a precision from 1 to {MAX_DIGITS} and a scale up to the precision"
            )
        return pa.decimal128(precision, scale)
    if lowered not in TYPES:
        raise ValueError(f"unknown type '{name}'", f"known types are {', '.join(TYPES)}, decimal(precision, scale)")
    if parameters and lowered not in {"varchar", "char"}:
        raise ValueError(f"type '{name.upper()}' takes no parameters")
    return TYPES[lowered]


def is_nullable(expr: Expr) -> bool:
    """False only when the expression cannot be NULL, whatever the row."""
    match expr:
        case Column():
            return expr.nullable
        case Literal():
            return expr.value is None
        case Cast():
            return is_nullable(expr.argument)
        case Call(function="is_null" | "is_not_null"):
            return False
        case Call(function="coalesce" | "greatest" | "least"):
            return all(is_nullable(argument) for argument in expr.arguments)
        case Call(function="case"):
            return any(is_nullable(value) for value in (*expr.arguments[1::2], expr.arguments[-1]))
        case Call(function=function):
            return function in _NULL_FROM_VALUES or any(is_nullable(argument) for argument in expr.arguments)


TYPES: dict[str, pa.DataType] = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": BIGINT,
    "long": BIGINT,
    "float": pa.float32(),
    "real": pa.float32(),
    "double": DOUBLE,
    "string": STRING,
    "varchar": STRING,
    "char": STRING,
    "text": STRING,
    "boolean": BOOLEAN,
    "date": DATE,
    "timestamp": TIMESTAMP,
}

_CASTS: dict[str, frozenset[str]] = {
    "integer": frozenset({"float", "decimal", "text", "boolean", "timestamp"}),
    "float": frozenset({"integer", "decimal", "text", "boolean", "timestamp"}),
    "decimal": frozenset({"integer", "float", "text", "boolean", "timestamp"}),
    "text": frozenset({"integer", "float", "decimal", "boolean", "date", "timestamp"}),
    "boolean": frozenset({"integer", "float", "decimal", "text"}),
    "date": frozenset({"text", "timestamp"}),
    "timestamp": frozenset({"integer", "float", "decimal", "text", "date"}),
}
_NULL_FROM_VALUES = frozenset({"divide", "modulo", "sqrt", "ln"})


# --- types -----------------------------------------------------------------------------------------------------------


def _canonical(type_: pa.DataType) -> pa.DataType:
    """The type that kernels compute in for values of this one."""
    match kind_of(type_):
        case "integer":
            return BIGINT
        case "float":
            return DOUBLE
        case "text":
            return STRING
        case "timestamp":
            return TIMESTAMP
        case "interval":
            return INTERVAL
        case _:
            return type_


def _as_decimal(type_: pa.DataType) -> pa.DataType:
    return type_ if is_decimal(type_) else pa.decimal128(_DIGITS_OF_INTEGER.get(str(type_), 20), 0)


def _decimal(precision: int, scale: int) -> pa.DataType:
    if precision > MAX_DIGITS:
        raise ValueError(
            f"the result would need decimal({precision},{scale}), more than {MAX_DIGITS} digits",
            "CAST an operand to a smaller decimal or to DOUBLE",
        )
    return pa.decimal128(precision, scale)


def _is_lossless(source: pa.DataType, target: pa.DataType) -> bool:
    kinds = kind_of(source), kind_of(target)
    if kinds == ("integer", "integer") or kinds == ("float", "float"):
        return bool(source.bit_width <= target.bit_width)
    if kinds in {("decimal", "decimal"), ("integer", "decimal")}:
        exact = _as_decimal(source)
        return bool(target.scale >= exact.scale and target.precision - target.scale >= exact.precision - exact.scale)
    return kinds in {("date", "timestamp"), ("text", "text")} or (kinds == ("timestamp", "timestamp"))


def _conversion_hint(kinds: set[str]) -> str:
    if kinds == {"text", "timestamp"}:
        return "write the time as TIMESTAMP '2026-01-31 12:00:00'"
    if kinds == {"text", "date"}:
        return "write the date as DATE '2026-01-31'"
    return "use CAST(… AS type) on one side"


def _not_computable(type_: pa.DataType) -> ValueError:
    if is_nested(type_) or kind_of(type_) == _OTHER:
        return ValueError(
            f"a value of type {type_name(type_)} cannot be computed with",
            "select the column bare, or take its parts out where the stream is read",
        )
    return ValueError(f"a value of type {type_name(type_)} cannot be used here")


def _found(arguments: Arguments) -> str:
    return ", ".join(type_name(argument.type) for argument in arguments) or "nothing"


def _wrong(name: str, expected: str, arguments: Arguments, hint: str = "") -> ValueError:
    written = _SYMBOLS.get(name, name.upper())
    return ValueError(f"'{written}' expects {expected}, found ({_found(arguments)})", hint)


def _unify(arguments: Arguments) -> Arguments:
    """All arguments in one type; identical types stay as they are."""
    arguments = _spelled_decimals(arguments)
    first, *others = (argument.type for argument in arguments)
    if all(other == first for other in others) and kind_of(first) != _OTHER:
        return arguments
    type_ = _canonical(first)
    for other in others:
        type_ = common_type(type_, other)
    return tuple(coerce(argument, type_) for argument in arguments)


def _spelled_decimals(arguments: Arguments) -> Arguments:
    """Number literals beside a decimal as the decimals they spell, so that `price > 0.1` is exact."""
    if not any(is_decimal(argument.type) for argument in arguments):
        return arguments
    return tuple(_spelled_decimal(argument) for argument in arguments)


def _spelled_decimal(expr: Expr) -> Expr:
    if not isinstance(expr, Literal) or isinstance(expr.value, bool) or not isinstance(expr.value, int | float):
        return expr
    value = decimal.Decimal(repr(expr.value))
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "literals are finite"
    if exponent > 0:
        value = _scaled(value, 0)
        digits, exponent = value.as_tuple().digits, 0
    precision = max(len(digits), -exponent)
    return Literal(value, pa.decimal128(precision, -exponent)) if precision <= MAX_DIGITS else expr


def _scaled(value: decimal.Decimal, scale: int) -> decimal.Decimal:
    # The default context of 28 digits would refuse longer decimals, which are legal up to 38.
    return value.quantize(decimal.Decimal(1).scaleb(-scale), context=decimal.Context(prec=2 * MAX_DIGITS))


# --- rules -----------------------------------------------------------------------------------------------------------


def _fixed(result: pa.DataType, *types: pa.DataType) -> Rule:
    """A function of a fixed list of types; numbers widen to what is wanted."""

    def rule(name: str, arguments: Arguments) -> Expr:
        expected = f"({', '.join(type_name(type_) for type_ in types)})"
        if len(arguments) != len(types):
            raise _wrong(name, expected, arguments)
        return Call(name, _widened(name, expected, arguments, types), result)

    return rule


def _widened(name: str, expected: str, arguments: Arguments, types: tuple[pa.DataType, ...]) -> Arguments:
    for argument, wanted in zip(arguments, types, strict=True):
        source, target = kind_of(argument.type), kind_of(wanted)
        if source == _OTHER:
            raise _not_computable(argument.type)
        number_to_double = target == "float" and source in {"integer", "decimal"}
        if source not in {target, _NULL} and not number_to_double:
            raise _wrong(name, expected, arguments, _CAST_HINT)
    return tuple(coerce(argument, wanted) for argument, wanted in zip(arguments, types, strict=True))


def _comparison(name: str, arguments: Arguments) -> Expr:
    if len(arguments) != 2:
        raise _wrong(name, "two values", arguments)
    if all(kind_of(argument.type) == _NULL for argument in arguments):
        arguments = tuple(coerce(argument, BOOLEAN) for argument in arguments)
    for argument in arguments:
        if kind_of(argument.type) == _OTHER:
            raise _not_computable(argument.type)
    return Call(name, _unify(arguments), BOOLEAN)


def _additive(name: str, arguments: Arguments) -> Expr:
    left, right = _two(name, arguments)
    kinds = kind_of(left.type), kind_of(right.type)
    if name == "add" and kinds == ("interval", "timestamp"):
        left, right, kinds = right, left, ("timestamp", "interval")
    if kinds == ("timestamp", "interval"):
        return Call(name, (coerce(left, TIMESTAMP), coerce(right, INTERVAL)), TIMESTAMP)
    if kinds == ("interval", "interval"):
        return Call(name, (left, right), INTERVAL)
    if name == "subtract" and set(kinds) <= {"timestamp", "date"} and "timestamp" in kinds:
        return Call(name, (coerce(left, TIMESTAMP), coerce(right, TIMESTAMP)), INTERVAL)
    if "date" in kinds:
        raise ValueError(
            f"'{_SYMBOLS[name]}' does not take a date, found ({_found(arguments)})",
            "CAST the date AS TIMESTAMP first",
        )
    return _arithmetic(name, (left, right))


def _multiplicative(name: str, arguments: Arguments) -> Expr:
    left, right = _two(name, arguments)
    kinds = kind_of(left.type), kind_of(right.type)
    if name == "multiply" and kinds == ("integer", "interval"):
        left, right, kinds = right, left, ("interval", "integer")
    if name == "multiply" and kinds == ("interval", "integer"):
        return Call(name, (coerce(left, INTERVAL), coerce(right, BIGINT)), INTERVAL)
    return _arithmetic(name, (left, right))


def _arithmetic(name: str, arguments: Arguments) -> Expr:
    left, right = _spelled_decimals(arguments)
    kinds = {kind_of(left.type), kind_of(right.type)}
    if not kinds <= {"integer", "float", "decimal", _NULL}:
        raise _wrong(name, "two numbers", arguments, _CAST_HINT)
    if kinds == {_NULL}:
        left, right, kinds = coerce(left, BIGINT), coerce(right, BIGINT), {"integer"}
    in_double = name == "divide" or "float" in kinds or (name == "modulo" and "decimal" in kinds)
    if in_double:
        return Call(name, (coerce(left, DOUBLE), coerce(right, DOUBLE)), DOUBLE)
    if "decimal" not in kinds:
        return Call(name, (coerce(left, BIGINT), coerce(right, BIGINT)), BIGINT)
    one = _as_decimal(right.type if kind_of(left.type) == _NULL else left.type)
    other = _as_decimal(left.type if kind_of(right.type) == _NULL else right.type)
    if name == "multiply":
        type_ = _decimal(one.precision + other.precision + 1, one.scale + other.scale)
    else:
        scale = max(one.scale, other.scale)
        type_ = _decimal(max(one.precision - one.scale, other.precision - other.scale) + scale + 1, scale)
    return Call(name, (coerce(left, one), coerce(right, other)), type_)


def _two(name: str, arguments: Arguments) -> tuple[Expr, Expr]:
    if len(arguments) != 2:
        raise _wrong(name, "two values", arguments)
    for argument in arguments:
        if kind_of(argument.type) == _OTHER:
            raise _not_computable(argument.type)
    return arguments[0], arguments[1]


def _sign(name: str, arguments: Arguments) -> Expr:
    kinds = {"integer", "float", "decimal", _NULL} | ({"interval"} if name == "negate" else set())
    if len(arguments) != 1 or kind_of(arguments[0].type) not in kinds:
        between = "for times, write x BETWEEN y - INTERVAL 5 SECONDS AND y + INTERVAL 5 SECONDS"
        raise _wrong(name, "one number", arguments, between if name == "abs" else "")
    argument = arguments[0]
    if name == "negate" and isinstance(argument, Literal) and argument.value is not None:
        assert isinstance(argument.value, int | float | decimal.Decimal | datetime.timedelta)
        return replace(argument, value=-argument.value)
    type_ = BIGINT if kind_of(argument.type) == _NULL else _canonical(argument.type)
    return Call(name, (coerce(argument, type_),), type_)


def _connective(name: str, arguments: Arguments) -> Expr:
    if len(arguments) < 2:
        raise _wrong(name, "two or more conditions", arguments)
    for argument in arguments:
        if kind_of(argument.type) not in {"boolean", _NULL}:
            raise _wrong(name, "conditions", arguments)
    flat: list[Expr] = []
    for argument in arguments:
        same = isinstance(argument, Call) and argument.function == name
        flat += argument.arguments if same and isinstance(argument, Call) else [coerce(argument, BOOLEAN)]
    return Call(name, tuple(flat), BOOLEAN)


def _null_test(name: str, arguments: Arguments) -> Expr:
    if len(arguments) != 1:
        raise _wrong(name, "one value", arguments)
    return Call(name, arguments, BOOLEAN)


def _membership(name: str, arguments: Arguments) -> Expr:
    value, *listed = arguments
    if not listed:
        raise _wrong(name, "at least one value in the list", arguments)
    if not all(isinstance(item, Literal) for item in listed):
        equalities = tuple(_comparison("equal", (value, item)) for item in listed)
        return equalities[0] if len(equalities) == 1 else Call("or", equalities, BOOLEAN)
    if kind_of(value.type) == _OTHER:
        raise _not_computable(value.type)
    unified = _unify(arguments)
    if kind_of(unified[0].type) == _NULL:
        unified = tuple(coerce(argument, BOOLEAN) for argument in unified)
    return Call(name, unified, BOOLEAN)


def _pattern(name: str, arguments: Arguments) -> Expr:
    expected = "(string, a string literal)"
    if len(arguments) != 2 or not isinstance(arguments[1], Literal):
        raise _wrong(name, expected, arguments)
    return Call(name, _widened(name, expected, arguments, (STRING, STRING)), BOOLEAN)


def _replacement(name: str, arguments: Arguments) -> Expr:
    expected = "(string, a string literal, a string literal)"
    if len(arguments) != 3 or not all(isinstance(argument, Literal) for argument in arguments[1:]):
        raise _wrong(name, expected, arguments)
    return Call(name, _widened(name, expected, arguments, (STRING,) * 3), STRING)


def _case(name: str, arguments: Arguments) -> Expr:
    *pairs, otherwise = arguments
    if not pairs or len(pairs) % 2:
        raise _wrong(name, "condition and value pairs, then a value for the rest", arguments)
    for condition in pairs[::2]:
        if kind_of(condition.type) not in {"boolean", _NULL}:
            raise ValueError(f"a condition of CASE must be boolean, found {type_name(condition.type)}")
    values = _typed(_unify((*pairs[1::2], otherwise)))
    flat = [part for pair in zip(pairs[::2], values, strict=False) for part in (coerce(pair[0], BOOLEAN), pair[1])]
    return Call(name, (*flat, values[-1]), values[-1].type)


def _of_one_type(name: str, arguments: Arguments) -> Expr:
    if not arguments:
        raise _wrong(name, "at least one value", arguments)
    for argument in arguments:
        if kind_of(argument.type) == _OTHER:
            raise _not_computable(argument.type)
    unified = _typed(_unify(arguments))
    return Call(name, unified, unified[0].type)


def _typed(values: Arguments) -> Arguments:
    if kind_of(values[0].type) == _NULL:
        raise ValueError("every value is an untyped NULL", "write CAST(NULL AS type)")
    return values


def _concat(name: str, arguments: Arguments) -> Expr:
    if not arguments:
        raise _wrong(name, "at least one string", arguments)
    return Call(name, _widened(name, "strings", arguments, (STRING,) * len(arguments)), STRING)


def _round(name: str, arguments: Arguments) -> Expr:
    expected = "(double) or (double, an integer literal)"
    digits: Expr = arguments[1] if len(arguments) == 2 else Literal(0, BIGINT)
    if len(arguments) not in {1, 2} or not isinstance(digits, Literal):
        raise _wrong(name, expected, arguments)
    return Call(name, _widened(name, expected, (arguments[0], digits), (DOUBLE, BIGINT)), DOUBLE)


def _substring(name: str, arguments: Arguments) -> Expr:
    expected = "(string, bigint start) or (string, bigint start, bigint length)"
    if len(arguments) == 2:
        arguments = (*arguments, Literal(WHOLE_TEXT, BIGINT))
    if len(arguments) != 3:
        raise _wrong(name, expected, arguments)
    return Call(name, _widened(name, expected, arguments, (STRING, BIGINT, BIGINT)), STRING)


def _date_part(name: str, arguments: Arguments) -> Expr:
    if len(arguments) != 1 or kind_of(arguments[0].type) not in {"timestamp", "date", _NULL}:
        raise _wrong(name, "(timestamp) or (date)", arguments)
    type_ = DATE if kind_of(arguments[0].type) == "date" else TIMESTAMP
    return Call(name, (coerce(arguments[0], type_),), BIGINT)


def _nullif(_name: str, arguments: Arguments) -> Expr:
    if len(arguments) != 2:
        raise _wrong("nullif", "two values", arguments)
    equality = _comparison("equal", arguments)
    return _case("case", (equality, Literal(None, pa.null()), arguments[0]))


def _if(_name: str, arguments: Arguments) -> Expr:
    if len(arguments) != 3:
        raise _wrong("if", "(condition, value, other value)", arguments)
    return _case("case", arguments)


FUNCTIONS: dict[str, Rule] = {
    "add": _additive,
    "subtract": _additive,
    "multiply": _multiplicative,
    "divide": _multiplicative,
    "modulo": _multiplicative,
    "negate": _sign,
    "abs": _sign,
    "equal": _comparison,
    "not_equal": _comparison,
    "less": _comparison,
    "less_equal": _comparison,
    "greater": _comparison,
    "greater_equal": _comparison,
    "and": _connective,
    "or": _connective,
    "not": _fixed(BOOLEAN, BOOLEAN),
    "is_null": _null_test,
    "is_not_null": _null_test,
    "in": _membership,
    "like": _pattern,
    "case": _case,
    "coalesce": _of_one_type,
    "greatest": _of_one_type,
    "least": _of_one_type,
    "floor": _fixed(DOUBLE, DOUBLE),
    "ceil": _fixed(DOUBLE, DOUBLE),
    "round": _round,
    "sqrt": _fixed(DOUBLE, DOUBLE),
    "exp": _fixed(DOUBLE, DOUBLE),
    "ln": _fixed(DOUBLE, DOUBLE),
    "power": _fixed(DOUBLE, DOUBLE, DOUBLE),
    "lower": _fixed(STRING, STRING),
    "upper": _fixed(STRING, STRING),
    "trim": _fixed(STRING, STRING),
    "ltrim": _fixed(STRING, STRING),
    "rtrim": _fixed(STRING, STRING),
    "length": _fixed(BIGINT, STRING),
    "substring": _substring,
    "concat": _concat,
    "starts_with": _fixed(BOOLEAN, STRING, STRING),
    "ends_with": _fixed(BOOLEAN, STRING, STRING),
    "contains": _fixed(BOOLEAN, STRING, STRING),
    "replace": _replacement,
    "year": _date_part,
    "month": _date_part,
    "day": _date_part,
    "hour": _fixed(BIGINT, TIMESTAMP),
    "minute": _fixed(BIGINT, TIMESTAMP),
    "second": _fixed(BIGINT, TIMESTAMP),
    "unix_micros": _fixed(BIGINT, TIMESTAMP),
    "date": _fixed(DATE, TIMESTAMP),
}
_SUGAR: dict[str, Rule] = {"nullif": _nullif, "if": _if}

AGGREGATES = frozenset({"count", "sum", "min", "max", "avg"})

SPELLINGS: dict[str, str] = {
    **{
        name: name
        for name in (
            "abs", "ceil", "coalesce", "concat", "contains", "date", "day", "ends_with", "exp", "floor", "greatest",
            "hour", "if", "least", "length", "ln", "lower", "ltrim", "minute", "month", "nullif", "power", "replace",
            "round", "rtrim", "second", "sqrt", "starts_with", "substring", "trim", "unix_micros", "upper", "year",
        )
    },
    "ceiling": "ceil",
    "char_length": "length",
    "character_length": "length",
    "len": "length",
    "substr": "substring",
    "pow": "power",
    "log": "ln",
    "lcase": "lower",
    "ucase": "upper",
    "startswith": "starts_with",
    "endswith": "ends_with",
    "ifnull": "coalesce",
    "nvl": "coalesce",
    "mod": "modulo",
    "dayofmonth": "day",
}  # fmt: skip
"""What may be written in call syntax, in lower case, and the canonical function (or sugar) it means."""
