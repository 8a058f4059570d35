"""Every function and cast of the expression language over edge values, for checks that evaluators agree.

`CASES` lists expressions over columns `c0`, `c1`, … of the relation `t`; cases with the same column types share the
rows of `edge_rows`: all combinations of the edge values of their types, including NULL.
"""

from __future__ import annotations

import datetime
import itertools
import math
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa

from anabranch.functions.patterns import regex
from anabranch.functions.texts import TRUNCATED
from anabranch.functions.types import quotient_type
from anabranch.lang.expr import Call, Cast, Column, Expr, Literal, LiteralValue
from anabranch.lang.schema import INTERVAL, TIMESTAMP

BOOL, INT, FLOAT, TEXT, DATE = pa.bool_(), pa.int64(), pa.float64(), pa.string(), pa.date32()
PRICE, RATE = pa.decimal128(10, 2), pa.decimal128(6, 4)
WIDE, WHOLE, FRACTION = pa.decimal128(38, 18), pa.decimal128(38, 0), pa.decimal128(38, 38)
CLOCK = pa.timestamp("us")
NUMBERS = pa.list_(pa.field("element", INT))
PAIR = pa.struct([pa.field("a", INT), pa.field("B c", TEXT)])


@dataclass(frozen=True)
class Case:
    """An expression over columns of the given types."""

    expr: Expr
    types: tuple[pa.DataType, ...]

    @property
    def is_transcendental(self) -> bool:
        """True when libraries may differ in the last digit."""
        return isinstance(self.expr, Call) and self.expr.function in ("exp", "ln", "power")

    def __str__(self) -> str:
        return f"{self.expr} over {', '.join(str(kind) for kind in self.types)}"


def edge_values(kind: pa.DataType) -> list[object]:
    """NULL and the values of a type at which implementations tend to differ."""
    return [None, *_EDGES[kind]]


def edge_rows(types: tuple[pa.DataType, ...]) -> pa.Table:
    """All combinations of edge values, as columns c0, c1, …"""
    rows = list(itertools.product(*[edge_values(kind) for kind in types]))
    return pa.table({f"c{index}": pa.array([row[index] for row in rows], kind) for index, kind in enumerate(types)})


def column(index: int, kind: pa.DataType) -> Column:
    return Column("t", f"c{index}", kind)


_TIMES: list[object] = [
    0,
    -1,
    1,
    1_709_210_096_123_456,
    1_710_037_800_000_000,
    -62_135_596_800_000_000,
    253_402_300_799_999_999,
]
_EDGES: dict[pa.DataType, list[object]] = {
    BOOL: [True, False],
    pa.int8(): [0, 1, -128, 127],
    pa.int32(): [0, 7, -(2**31), 2**31 - 1],
    INT: [0, 1, -1, 2, 7, -7, 10**6, 2**31, -(2**63), 2**63 - 1, 2**53 + 1],
    pa.float32(): [0.0, 1.5, -2.5, 0.1],
    FLOAT: [
        *[0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, 2.675, -1.005, 1234.5678, 1e-7, 123456789.0, 1e16, -1e300, 1e-300],
        *[math.inf, -math.inf, math.nan, 2.0**63, -(2.0**63), 9223372036854.0, -9223372036854.5],
    ],
    PRICE: [Decimal(text) for text in ("0.00", "0.05", "-0.05", "1.25", "-7.50", "99999999.99", "-99999999.99")],
    RATE: [Decimal(text) for text in ("0.0000", "0.3333", "-12.5000", "99.9999")],
    WIDE: [
        Decimal(text)
        for text in (
            *("0", "0.000000000000000001", "-1.5", "12345678901234567890.123456789012345678"),
            *("99999999999999999999.999999999999999999", "1.000000059604644776", "9223372036854.775808"),
        )
    ],
    WHOLE: [
        Decimal(text) for text in ("0", "5", "-541", "9" * 38, "-" + "9" * 38, "1" + "0" * 20, "9223372036854775807")
    ],
    FRACTION: [Decimal(text) for text in ("0", "0." + "9" * 38, "-0." + "9" * 38, "0." + "0" * 37 + "1", "-0.5")],
    TEXT: [
        *["", "a", "A", "ab", "abc", "b%", "a_b", "a\\b", " pad ", "a\nb", "'q'"],
        *["\u00e9t\u00e9", "Stra\u00dfe", "\U0001f600x"],
    ],
    DATE: [datetime.date(*day) for day in ((1970, 1, 1), (1969, 12, 31), (2024, 2, 29), (1, 1, 1), (9999, 12, 31))],
    TIMESTAMP: _TIMES,
    CLOCK: _TIMES,
    INTERVAL: [0, 1, -1, 86_400_000_000, -90_061_000_001, 2**61],
    NUMBERS: [[], [1], [None, 2, 3]],
    PAIR: [{"a": 1, "B c": "x"}, {"a": None, "B c": None}],
}

EDGE_TYPES = tuple(kind for kind in _EDGES if not pa.types.is_nested(kind))

_NUMBERS_AS_TEXT = [
    *["0", "1", "-1", "+12", " 42 ", "9223372036854775807", "9223372036854775808", "1.5", "-.5", "5.", "1e3", "1E-2"],
    *["1e400", "NaN", "inf", "-Infinity", "0x1F", "1_000", "", "abc", "--1", "0.005", "-0.005", "99999999.995"],
    *["1.5f", "2D", "0x1p3", "+nan", "\u0663", "\t7\n", "1e", "1 2"],
]
_TIMES_AS_TEXT = [
    *["2024-02-29", "2023-02-29", "2024-2-3", "2024", "2024-13-01", "1969-12-31 23:59:59.999999", "nonsense", ""],
    *["2024-02-29 12:34:56.5", "2024-02-29T12:34:56Z", "2024-02-29 12:34:56+01:30", "2024-02-29 12:34", " 2024-01-01 "],
    *["2024-01-01 24:00:00", "2024-01-01 00:00:00.1234567890", "2024-01-01 12:00:00.", "2024-01-01 1:2:3+1:30"],
    *["2024-01-01 12:00:00 Europe/Paris", "2024-01-01 12:00:00 PST", "2024-01-01 12:00:00UTC+2", "T12:00:00", "12:00"],
    *["2024-01-01 12:00:00+18:00", "2024-01-01 12:00:00+18:30", "2024-01-01 12:00:00-01:60", "2024-01-01 12:00Z"],
    *[
        "2024-01-01 12:00:00-0830",
        "2024-01-01 12:00:00+130",
        "2024-01-01 12:00:00 UTC",
        "2024-01-01 12",
        "2024-01-01 x",
    ],
    *[
        "2024-03-10 02:30:00",
        "2024-01-01 12:00:00+01:30:15",
        "0000-01-01",
        "10000-01-01",
        "+2024-01-01",
        "-0001-01-01",
        "2024-01-01T\nx",
    ],
]
_TRUTHS_AS_TEXT = ["true", "FALSE", " t ", "n", "1", "0", "yes", "maybe", ""]
TEXTS_TO_READ: dict[pa.DataType, list[str]] = {
    BOOL: _TRUTHS_AS_TEXT,
    pa.int8(): _NUMBERS_AS_TEXT,
    INT: _NUMBERS_AS_TEXT,
    FLOAT: _NUMBERS_AS_TEXT,
    PRICE: _NUMBERS_AS_TEXT,
    WIDE: _NUMBERS_AS_TEXT,
    DATE: _TIMES_AS_TEXT,
    TIMESTAMP: _TIMES_AS_TEXT,
}
"""Texts for casts from strings, valid and invalid, by target type."""

_COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
REGEXES = ("a", "^a.*b$", "(a|b)(b*)", "[^a-c]+", "\\d+|\\s", "a\\b", "(?:a(b)?)c?", "\\w{2,3}", ".\\W", "x*$", "\\.|_")
"""Regular expressions; see `functions.patterns` for those that are refused."""
_LIKE_PATTERNS = ("%", "a%", "%b", "_", "a_b", "a\\_b", "a\\\\b", "%\\%", "", "__", "%a%b%")


def _calls(types: tuple[pa.DataType, ...], result: pa.DataType, *functions: str) -> list[Case]:
    arguments = tuple(column(index, kind) for index, kind in enumerate(types))
    return [Case(Call(function, arguments, result), types) for function in functions]


def _over(types: tuple[pa.DataType, ...], function: str, result: pa.DataType, *constants: Literal) -> Case:
    arguments = tuple(column(index, kind) for index, kind in enumerate(types))
    return Case(Call(function, (*arguments, *constants), result), types)


def _in(kind: pa.DataType, *values: LiteralValue) -> Case:
    return _over((kind,), "in", BOOL, *[Literal(value, kind) for value in values])


def _decimal(precision: int, scale: int) -> pa.DataType:
    return pa.decimal128(precision, scale)


def _ordered(kind: pa.DataType) -> list[Case]:
    """The cases of every orderable type."""
    two, three = (kind, kind), (kind, kind, kind)
    first, second = column(0, kind), column(1, kind)
    chosen = Call("case", (Call("less", (first, second), BOOL), first, Literal(None, kind)), kind)
    few = [] if len(_EDGES[kind]) > 8 else _calls(three, kind, "greatest", "least", "coalesce")
    return [
        *_calls(two, BOOL, *_COMPARISONS),
        *_calls(two, kind, "greatest", "least", "coalesce"),
        *few,
        *_calls((kind,), BOOL, "is_null", "is_not_null"),
        Case(chosen, two),
    ]


def _casts() -> list[Case]:
    numbers = (pa.int8(), pa.int32(), INT, pa.float32(), FLOAT, PRICE, WIDE, WHOLE, FRACTION)
    pairs = [(source, target) for source in numbers for target in (*numbers, BOOL, TEXT)]
    pairs += [(BOOL, target) for target in (*numbers, TEXT)]
    pairs += [(source, TIMESTAMP) for source in (INT, FLOAT, PRICE, WIDE, WHOLE)]
    pairs += [(DATE, TEXT), (DATE, TIMESTAMP), (TIMESTAMP, TEXT), (TIMESTAMP, DATE), (TIMESTAMP, INT)]
    pairs += [(TIMESTAMP, FLOAT), (TIMESTAMP, pa.int32()), (TIMESTAMP, WIDE), (TIMESTAMP, PRICE)]
    pairs += [(CLOCK, target) for target in (TIMESTAMP, TEXT, DATE, INT, FLOAT, WIDE)]
    return [Case(Cast(column(0, source), target), (source,)) for source, target in pairs if source != target]


def _arithmetic() -> list[Case]:
    fractions = [Case(Call("round", (column(0, FLOAT), Literal(n, INT)), FLOAT), (FLOAT,)) for n in (0, 2, -2, 10)]
    return [
        *_calls((INT, INT), INT, "add", "subtract", "multiply", "modulo"),
        *_calls((INT,), INT, "negate", "abs"),
        *_calls((FLOAT, FLOAT), FLOAT, "add", "subtract", "multiply", "divide", "modulo", "power"),
        *_calls((FLOAT,), FLOAT, "negate", "abs", "floor", "ceil", "sqrt", "exp", "ln"),
        *fractions,
        *_calls((PRICE, RATE), quotient_type(PRICE, RATE), "divide"),
        *_calls((PRICE, PRICE), quotient_type(PRICE, PRICE), "divide"),
        *_calls((WIDE, RATE), quotient_type(WIDE, RATE), "divide"),
        *_calls((WHOLE, PRICE), quotient_type(WHOLE, PRICE), "divide"),
        *_calls((PRICE, RATE), _decimal(6, 4), "modulo"),
        *_calls((WIDE, PRICE), _decimal(26, 18), "modulo"),
        *_calls((PRICE, PRICE), _decimal(11, 2), "add", "subtract"),
        *_calls((PRICE, RATE), _decimal(13, 4), "add", "subtract"),
        *_calls((PRICE, RATE), _decimal(17, 6), "multiply"),
        *_calls((PRICE,), PRICE, "negate", "abs"),
        *_calls((TIMESTAMP, INTERVAL), TIMESTAMP, "add", "subtract"),
        *_calls((TIMESTAMP, TIMESTAMP), INTERVAL, "subtract"),
        *_calls((INTERVAL, INTERVAL), INTERVAL, "add", "subtract"),
        *_calls((INTERVAL, INT), INTERVAL, "multiply"),
        *_calls((INTERVAL,), INTERVAL, "negate"),
    ]


def _logic() -> list[Case]:
    return [
        *_calls((BOOL, BOOL, BOOL), BOOL, "and", "or"),
        *_calls((BOOL,), BOOL, "not"),
        _in(INT, 1, -7, 2**63 - 1),
        _in(INT, 1, None),
        _in(FLOAT, 0.0, math.nan),
        _in(TEXT, "a", "\u00e9t\u00e9", None),
        _in(PRICE, Decimal("0.05"), Decimal("1.25")),
        _in(DATE, datetime.date(1970, 1, 1)),
        _in(TIMESTAMP, datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)),
        _in(BOOL, True),
    ]


def _texts() -> list[Case]:
    pieces = (TEXT, INT, INT)
    return [
        *_calls((TEXT,), TEXT, "lower", "upper", "trim", "ltrim", "rtrim"),
        *_calls((TEXT,), INT, "length"),
        *_calls((TEXT, TEXT), TEXT, "concat"),
        *_calls((TEXT, TEXT), BOOL, "starts_with", "ends_with", "contains"),
        *_calls(pieces, TEXT, "substring"),
        *[_over((TEXT,), "like", BOOL, Literal(pattern, TEXT)) for pattern in _LIKE_PATTERNS],
        _over((TEXT,), "replace", TEXT, Literal("a", TEXT), Literal("zz", TEXT)),
        _over((TEXT,), "replace", TEXT, Literal("", TEXT), Literal("zz", TEXT)),
        Case(Call("concat", (column(0, TEXT), Literal("'\\\n", TEXT)), TEXT), (TEXT,)),
        *[_over((TEXT,), "rlike", BOOL, Literal(pattern, TEXT)) for pattern in REGEXES],
        *[
            _over((TEXT,), "regexp_extract", TEXT, Literal(pattern, TEXT), Literal(group, INT))
            for pattern in REGEXES
            for group in range(regex(pattern).groups + 1)
        ],
        *[
            _over((TEXT,), "regexp_replace", TEXT, Literal(pattern, TEXT), Literal(by, TEXT))
            for pattern in REGEXES
            if not regex(pattern).is_empty_possible
            for by in ("", "<$0>", *(["$1-"] if regex(pattern).groups else []))
        ],
    ]


def _nested() -> list[Case]:
    return [
        *[_over((NUMBERS,), "element", INT, Literal(place, INT)) for place in (0, 1, -1, None)],
        *_calls((NUMBERS, INT), INT, "element"),
        *_calls((NUMBERS,), INT, "size"),
        _over((PAIR,), "field", INT, Literal("a", TEXT)),
        _over((PAIR,), "field", TEXT, Literal("B c", TEXT)),
    ]


def _times() -> list[Case]:
    return [
        *_calls((TIMESTAMP,), INT, "year", "month", "day", "hour", "minute", "second", "unix_micros"),
        *_calls((TIMESTAMP,), DATE, "date"),
        *_calls((INT,), TIMESTAMP, "timestamp_seconds", "timestamp_millis", "timestamp_micros"),
        *_calls((DATE,), INT, "year", "month", "day"),
        *_calls((TIMESTAMP,), INT, "quarter", "dayofweek", "dayofyear", "weekofyear"),
        *_calls((DATE,), INT, "quarter", "dayofweek", "dayofyear", "weekofyear"),
        *[
            Case(Call("date_trunc", (Literal(unit, TEXT), column(0, TIMESTAMP)), TIMESTAMP), (TIMESTAMP,))
            for unit in TRUNCATED
        ],
    ]


_ORDERED = (BOOL, INT, FLOAT, PRICE, TEXT, DATE, TIMESTAMP, INTERVAL)

CASES: tuple[Case, ...] = (
    *(case for kind in _ORDERED for case in _ordered(kind)),
    *_arithmetic(),
    *_logic(),
    *_texts(),
    *_times(),
    *_nested(),
    *_casts(),
)


def agreed(value: object, case: Case) -> object:
    """Normalises a result for the comparison of two evaluators."""
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        return float(f"{value:.12g}") + 0.0 if case.is_transcendental else value
    return value
