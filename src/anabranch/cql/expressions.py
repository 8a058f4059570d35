"""The expression half of the grammar, loosest binding first.

OR  <  AND  <  NOT  <  comparison, IS, IN, BETWEEN, LIKE  <  + - ||  <  * / %  <  unary + -  <  primary
"""

from __future__ import annotations

import datetime
import zoneinfo
from collections.abc import Callable

from anabranch.cql.ast import (
    CastTo,
    ColumnName,
    Constant,
    Duration,
    Exists,
    Expression,
    FunctionCall,
    Identifier,
    InQuery,
    Operation,
    RowNumber,
    SortItem,
    Statement,
    depth,
)
from anabranch.cql.cursor import Cursor
from anabranch.cql.lexer import Kind, Token
from anabranch.errors import ParseError, Span, Unsupported
from anabranch.lang.window import UNITS, bounded, parse_duration, scaled

_COMPARISONS = {
    "=": "equal",
    "<=>": "null_safe_equal",
    "==": "equal",
    "<>": "not_equal",
    "!=": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}
_PARTS = {
    "year": "year",
    "quarter": "quarter",
    "month": "month",
    "week": "weekofyear",
    "day": "day",
    "dow": "dayofweek",
    "doy": "dayofyear",
    "hour": "hour",
    "minute": "minute",
    "second": "second",
}
_TESTS = ("IN", "BETWEEN", "LIKE", "ILIKE", "RLIKE", "REGEXP")
_SUMS = {"+": "add", "-": "subtract", "||": "concat"}
_PRODUCTS = {"*": "multiply", "/": "divide", "%": "modulo"}
_MOST_DIGITS = 1000
_MOST_DEEP = 120
"""The maximum length of a chain of operators, as in `a + b + c + …`; every walk makes up to four calls per operator."""
_SUBQUERY_REMEDY = "write it as EXISTS (SELECT …) or x IN (SELECT …) in WHERE, or join the stream in FROM"
_QUANTIFIED = {
    "ANY": "write EXISTS (SELECT … WHERE x > y) in WHERE",
    "SOME": "write EXISTS (SELECT … WHERE x > y) in WHERE",
    "ALL": "write NOT EXISTS (SELECT … WHERE NOT x > y) in WHERE",
}

_NO_OVER = "write it as an aggregate with GROUP BY and a window"
_INSTEAD_OF_OVER = {
    "rank": "write ROW_NUMBER(), which orders ties by their values",
    "dense_rank": "write ROW_NUMBER() over SELECT DISTINCT values, and join the result",
    "first_value": "write FIRST(x) or MIN_BY(x, y) with GROUP BY and a window",
    "last_value": "write LAST(x) or MAX_BY(x, y) with GROUP BY and a window",
    "lag": "join the stream with itself: [PARTITION BY k ROWS 2] holds a row and the one before it",
    "lead": "join the stream with itself: [PARTITION BY k ROWS 2] holds a row and the one before it",
}


def expression(cursor: Cursor) -> Expression:
    """Parses any expression; the binder checks that conditions are boolean."""
    start = cursor.peek().span.start
    with cursor.nested():
        parts = [_conjunction(cursor)]
        while cursor.take_word("OR"):
            parts.append(_conjunction(cursor))
    found = parts[0] if len(parts) == 1 else Operation("or", tuple(parts), _since(cursor, start))
    if cursor.is_outside and depth(found) > _MOST_DEEP:
        raise ParseError(
            f"the expression has more than {_MOST_DEEP} operators in a row",
            text=cursor.text,
            span=_since(cursor, start),
            hint="compute a part of it before the stream is registered",
        )
    return found


def duration(cursor: Cursor, expected: str) -> Duration:
    """Parses `(number unit)+` with an optional sign; the binder rejects durations that are not positive."""
    start = cursor.peek().span.start
    sign = -1 if cursor.take_symbol("-") else 1
    if cursor.peek().kind is not Kind.NUMBER:
        raise cursor.unexpected(expected)
    total = 0
    while cursor.peek().kind is Kind.NUMBER:
        total += _units(cursor, cursor.take())
    span = _since(cursor, start)
    try:
        return Duration(sign * bounded(total, cursor.text[span.start : span.end]), span)
    except ValueError as error:
        raise ParseError(str(error), text=cursor.text, span=span) from None


def _units(cursor: Cursor, number: Token) -> int:
    """Returns the microseconds of a number and the unit that follows it."""
    name, size = cursor.peek().value, _unit(cursor)
    try:
        return scaled(number.value, name, size)
    except ValueError as error:
        span = Span(number.span.start, cursor.end_of_last)
        raise ParseError(str(error), text=cursor.text, span=span) from None


def _unit(cursor: Cursor) -> int:
    size = UNITS.get(cursor.peek().value.lower().removesuffix("s")) if cursor.peek().kind is Kind.WORD else None
    if size is None:
        raise cursor.unexpected(f"a unit of time ({', '.join(f'{unit}s' for unit in UNITS)})")
    cursor.take()
    return size


def _conjunction(cursor: Cursor) -> Expression:
    start = cursor.peek().span.start
    parts = [_negation(cursor)]
    while cursor.take_word("AND"):
        parts.append(_negation(cursor))
    return parts[0] if len(parts) == 1 else Operation("and", tuple(parts), _since(cursor, start))


def _negation(cursor: Cursor) -> Expression:
    negated = cursor.take_word("NOT")
    if negated is None:
        return _comparison(cursor)
    with cursor.nested():
        argument = _negation(cursor)
    return Operation("not", (argument,), _since(cursor, negated.span.start))


def _comparison(cursor: Cursor) -> Expression:
    start = cursor.peek().span.start
    left = _sum(cursor)
    symbol = cursor.take_symbol(*_COMPARISONS)
    if symbol is not None:
        if cursor.peek().is_word("ANY", "ALL", "SOME") and cursor.peek(2).is_word("SELECT"):
            word = cursor.peek().value.upper()
            raise cursor.unsupported(f"{word} (SELECT …) is not supported", _QUANTIFIED[word])
        return Operation(_COMPARISONS[symbol.value], (left, _sum(cursor)), _since(cursor, start))
    if cursor.take_word("IS"):
        negated = cursor.take_word("NOT")
        if (truth := cursor.take_word("TRUE", "FALSE", "UNKNOWN")) is not None:
            value = Constant({"TRUE": True, "FALSE": False}.get(truth.value.upper()), truth.span)
            called = "is_null" if value.value is None else "null_safe_equal"
            same = Operation(called, (left, value)[: 2 - (value.value is None)], _since(cursor, start))
            return Operation("not", (same,), same.span) if negated else same
        if cursor.take_word("DISTINCT"):
            cursor.expect_word("FROM")
            same = Operation("null_safe_equal", (left, _sum(cursor)), _since(cursor, start))
            return same if negated else Operation("not", (same,), same.span)
        cursor.expect_word("NULL", also="DISTINCT FROM" if negated else "NOT")
        return Operation("is_not_null" if negated else "is_null", (left,), _since(cursor, start))
    negated = cursor.take_word("NOT") if cursor.peek(1).is_word(*_TESTS) else None
    test: Expression | None = None
    if cursor.take_word("IN"):
        test = _in(cursor, left, start)
    elif cursor.take_word("BETWEEN"):
        low = _sum(cursor)
        cursor.expect_word("AND")
        high = _sum(cursor)
        span = _since(cursor, start)
        bounds = Operation("greater_equal", (left, low), span), Operation("less_equal", (left, high), span)
        test = Operation("and", bounds, span)
    elif cursor.take_word("LIKE"):
        test = Operation("like", (left, _sum(cursor)), _since(cursor, start))
    elif cursor.take_word("ILIKE"):
        pattern = _sum(cursor)
        if isinstance(pattern, Constant) and isinstance(pattern.value, str):
            pattern = Constant(pattern.value.lower(), pattern.span)
        test = Operation("like", (Operation("lower", (left,), left.span), pattern), _since(cursor, start))
    elif cursor.take_word("RLIKE", "REGEXP"):
        test = Operation("rlike", (left, _sum(cursor)), _since(cursor, start))
    if test is None:
        return left
    return Operation("not", (test,), test.span) if negated else test


def _in(cursor: Cursor, value: Expression, start: int) -> Expression:
    cursor.expect_symbol("(")
    if cursor.peek().is_word("SELECT"):
        return InQuery(value, _subquery(cursor), _since(cursor, start))
    listed = [expression(cursor)]
    while cursor.take_symbol(","):
        listed.append(expression(cursor))
    cursor.expect_symbol(")", also="','")
    return Operation("in", (value, *listed), _since(cursor, start))


def _subquery(cursor: Cursor) -> Statement:
    """Parses a SELECT and the bracket that closes it."""
    assert cursor.subquery is not None
    with cursor.nested():
        found = cursor.subquery(cursor)
    cursor.expect_symbol(")")
    return found


def _sum(cursor: Cursor) -> Expression:
    start = cursor.peek().span.start
    left = _product(cursor)
    while (symbol := cursor.take_symbol(*_SUMS)) is not None:
        left = Operation(_SUMS[symbol.value], (left, _product(cursor)), _since(cursor, start))
    return left


def _product(cursor: Cursor) -> Expression:
    start = cursor.peek().span.start
    left = _signed(cursor)
    while (symbol := cursor.take_symbol(*_PRODUCTS)) is not None:
        left = Operation(_PRODUCTS[symbol.value], (left, _signed(cursor)), _since(cursor, start))
    return left


def _signed(cursor: Cursor) -> Expression:
    sign = cursor.take_symbol("+", "-")
    if sign is None:
        return _part(cursor)
    with cursor.nested():
        argument = _signed(cursor)
    return argument if sign.value == "+" else Operation("negate", (argument,), _since(cursor, sign.span.start))


def _part(cursor: Cursor) -> Expression:
    """Parses a primary expression, or a field or element of one."""
    start = cursor.peek().span.start
    found = _primary(cursor)
    while True:
        if cursor.take_symbol("."):
            name = cursor.member("a field")
            found = Operation("field", (found, Constant(name.name, name.span)), _since(cursor, start))
        elif cursor.take_symbol("["):
            place = expression(cursor)
            cursor.expect_symbol("]")
            found = Operation("element", (found, place), _since(cursor, start))
        elif cursor.take_symbol("::"):
            found = CastTo(found, *_type(cursor), _since(cursor, start))
        elif cursor.peek().is_word("AT") and cursor.peek(1).is_word("TIME"):
            raise cursor.unsupported(
                "AT TIME ZONE is not supported", "times are UTC; convert them where the results are read"
            )
        else:
            return found


def _primary(cursor: Cursor) -> Expression:
    token = cursor.peek()
    match token.kind:
        case Kind.NUMBER | Kind.TEXT:
            cursor.take()
            return Constant(_number(cursor, token) if token.kind is Kind.NUMBER else token.value, token.span)
        case Kind.SYMBOL if token.is_symbol("("):
            cursor.take()
            _refuse_subquery(cursor)
            inner = expression(cursor)
            cursor.expect_symbol(")")
            return inner
        case Kind.WORD if token.value.upper() in _WORDED:
            return _WORDED[token.value.upper()](cursor)
        case Kind.WORD if token.value.upper() in _TYPED and cursor.peek(1).kind in (Kind.TEXT, Kind.NUMBER):
            return _TYPED[token.value.upper()](cursor)
    if not cursor.at_name():
        raise cursor.unexpected("an expression")
    if cursor.peek(1).is_symbol("(") and token.kind is Kind.WORD:
        return _call(cursor)
    return _column(cursor)


def _number(cursor: Cursor, token: Token) -> int | float:
    if not token.value.isdigit():
        return float(token.value)
    if len(token.value) > _MOST_DIGITS:
        raise ParseError(f"a number of {len(token.value)} digits is too long", text=cursor.text, span=token.span)
    return int(token.value)


def _column(cursor: Cursor) -> Expression:
    first = cursor.identifier("a column")
    if not cursor.take_symbol("."):
        return ColumnName(None, first, first.span)
    second = cursor.member(f"a column of '{first.name}'")
    return ColumnName(first, second, _since(cursor, first.span.start))


def _call(cursor: Cursor) -> Expression:
    name = cursor.identifier("a function")
    cursor.expect_symbol("(")
    arguments: list[Expression] = []
    star = False
    if name.name.lower() == "extract" and cursor.peek(1).is_word("FROM"):
        return _extract(cursor, name)
    distinct = cursor.peek()
    is_distinct = cursor.take_word("DISTINCT") is not None
    if is_distinct and name.name.lower() != "count":
        raise Unsupported(
            f"DISTINCT inside {name.name.upper()} is not supported",
            text=cursor.text,
            span=distinct.span,
            hint=f"only COUNT takes it; write {name.name.upper()} over a query of the distinct rows: "
            "FROM (SELECT DISTINCT k, x FROM s [TUMBLE 1 MINUTE]) [NOW SLIDE 1 MINUTE] AS d",
        )
    if cursor.peek().is_symbol("*"):
        cursor.take()
        star = True
    elif not cursor.peek().is_symbol(")"):
        _refuse_subquery(cursor)
        arguments.append(expression(cursor))
        while cursor.take_symbol(","):
            arguments.append(expression(cursor))
    cursor.expect_symbol(")", also="" if star else "','")
    if cursor.peek().is_word("OVER"):
        if name.name.lower() != "row_number":
            remedy = "only ROW_NUMBER() takes OVER; " + _INSTEAD_OF_OVER.get(name.name.lower(), _NO_OVER)
            raise cursor.unsupported(f"{name.name.upper()} with OVER is not supported", remedy)
        if arguments or star:
            raise ParseError("ROW_NUMBER takes no argument", text=cursor.text, span=_since(cursor, name.span.start))
        return _over(cursor, name)
    if cursor.peek().is_word("WITHIN") and cursor.peek(1).is_word("GROUP"):
        raise cursor.unsupported("WITHIN GROUP is not supported", "write PERCENTILE(x, 0.5) or MEDIAN(x)")
    condition = _filter(cursor)
    own = cursor.functions.get(name.name.lower())
    return FunctionCall(name, tuple(arguments), star, _since(cursor, name.span.start), own, is_distinct, condition)


def _filter(cursor: Cursor) -> Expression | None:
    """Parses `FILTER (WHERE condition)` behind an aggregate."""
    if not (cursor.peek().is_word("FILTER") and cursor.peek(1).is_symbol("(")):
        return None
    cursor.take()
    cursor.take()
    cursor.expect_word("WHERE")
    found = expression(cursor)
    cursor.expect_symbol(")")
    return found


def _over(cursor: Cursor, name: Identifier) -> RowNumber:
    """Parses `OVER (PARTITION BY … ORDER BY …)`."""
    cursor.expect_word("OVER")
    cursor.expect_symbol("(")
    partition: list[Expression] = []
    if cursor.take_word("PARTITION"):
        cursor.expect_word("BY")
        partition.append(expression(cursor))
        while cursor.take_symbol(","):
            partition.append(expression(cursor))
    if not cursor.peek().is_word("ORDER"):
        raise cursor.unexpected("ORDER BY, by which rows are numbered")
    order = sort_items(cursor)
    if cursor.peek().is_word("ROWS", "RANGE", "GROUPS"):
        raise cursor.unsupported("a frame in OVER is not supported", "leave it out: ROW_NUMBER() does not depend on it")
    cursor.expect_symbol(")", also="','")
    span = _since(cursor, name.span.start)
    return RowNumber(" ".join(cursor.text[span.start : span.end].lower().split()), tuple(partition), order, span)


def sort_items(cursor: Cursor) -> tuple[SortItem, ...]:
    """Parses `ORDER BY expression [ASC | DESC] [NULLS FIRST | LAST], …`."""
    cursor.expect_word("ORDER")
    cursor.expect_word("BY")
    found = [_sort_item(cursor)]
    while cursor.take_symbol(","):
        found.append(_sort_item(cursor))
    return tuple(found)


def _sort_item(cursor: Cursor) -> SortItem:
    value = expression(cursor)
    word = cursor.take_word("ASC", "DESC")
    is_descending = word is not None and word.is_word("DESC")
    nulls_first = not is_descending
    if cursor.take_word("NULLS"):
        place = cursor.take_word("FIRST", "LAST")
        if place is None:
            raise cursor.unexpected("FIRST or LAST")
        nulls_first = place.is_word("FIRST")
    return SortItem(value, is_descending, nulls_first)


def _extract(cursor: Cursor, name: Identifier) -> Expression:
    """Parses `EXTRACT(YEAR FROM ts)` as a call of the function with the name of the part."""
    part = cursor.identifier("a part of a time, such as YEAR")
    cursor.expect_word("FROM")
    value = expression(cursor)
    cursor.expect_symbol(")")
    called = _PARTS.get(part.name.lower())
    if called is None:
        raise ParseError(
            f"EXTRACT does not know the part '{part.name}'",
            text=cursor.text,
            span=part.span,
            hint=f"the parts are {', '.join(word.upper() for word in _PARTS)}",
        )
    return FunctionCall(Identifier(called, part.span), (value,), False, _since(cursor, name.span.start))


def _refuse_subquery(cursor: Cursor) -> None:
    if cursor.peek().is_word("SELECT"):
        raise cursor.unsupported("a subquery as a value is not supported", _SUBQUERY_REMEDY)


def _exists(cursor: Cursor) -> Expression:
    start = cursor.take().span.start
    cursor.expect_symbol("(")
    if not cursor.peek().is_word("SELECT"):
        raise cursor.unexpected("SELECT")
    return Exists(_subquery(cursor), _since(cursor, start))


def _named_constant(cursor: Cursor) -> Expression:
    token = cursor.take()
    return Constant({"TRUE": True, "FALSE": False, "NULL": None}[token.value.upper()], token.span)


def _case(cursor: Cursor) -> Expression:
    start = cursor.take().span.start
    operand = None if cursor.peek().is_word("WHEN") else expression(cursor)
    arguments: list[Expression] = []
    while cursor.take_word("WHEN"):
        when = expression(cursor)
        arguments.append(when if operand is None else Operation("equal", (operand, when), when.span))
        cursor.expect_word("THEN")
        arguments.append(expression(cursor))
    if not arguments:
        raise cursor.unexpected("WHEN")
    otherwise = expression(cursor) if cursor.take_word("ELSE") else Constant(None, cursor.peek().span)
    cursor.expect_word("END", also="WHEN or ELSE")
    return Operation("case", (*arguments, otherwise), _since(cursor, start))


def _cast(cursor: Cursor) -> Expression:
    start = cursor.take().span.start
    cursor.expect_symbol("(")
    argument = expression(cursor)
    cursor.expect_word("AS")
    type_, parameters = _type(cursor)
    cursor.expect_symbol(")")
    return CastTo(argument, type_, parameters, _since(cursor, start))


def _type(cursor: Cursor) -> tuple[Identifier, tuple[int, ...]]:
    """Parses the name of a type and its parameters, as in DECIMAL(10, 2)."""
    name = cursor.identifier("a type")
    parameters: list[int] = []
    if cursor.take_symbol("("):
        parameters.append(_whole_number(cursor))
        while cursor.take_symbol(","):
            parameters.append(_whole_number(cursor))
        cursor.expect_symbol(")")
    return name, tuple(parameters)


def _whole_number(cursor: Cursor) -> int:
    if cursor.peek().kind is not Kind.NUMBER or not cursor.peek().value.isdigit():
        raise cursor.unexpected("a whole number")
    value = _number(cursor, cursor.take())
    assert isinstance(value, int), "made of digits"
    return value


def _interval(cursor: Cursor) -> Expression:
    start = cursor.take().span.start
    if cursor.peek().kind is Kind.NUMBER:
        micros = duration(cursor, "a length of time").micros
    else:
        text = cursor.take()
        micros = _interval_text(cursor, text)
    return Constant(datetime.timedelta(microseconds=micros), _since(cursor, start))


def _interval_text(cursor: Cursor, text: Token) -> int:
    """Parses `'5' SECOND`, or a whole duration inside the quotes."""
    if len(text.value.split()) == 1:
        return _units(cursor, text)
    try:
        return parse_duration(text.value)
    except ValueError as error:
        raise ParseError(str(error), text=cursor.text, span=text.span) from None


def _date(cursor: Cursor) -> Expression:
    start, text = cursor.take().span.start, cursor.take()
    try:
        value = datetime.date.fromisoformat(text.value)
    except ValueError:
        raise _not_a("date", "DATE '2026-01-31'", cursor, text) from None
    return Constant(value, _since(cursor, start))


def _timestamp(cursor: Cursor) -> Expression:
    start, text = cursor.take().span.start, cursor.take()
    written, _, region = text.value.strip().rpartition(" ")
    try:
        if region[:1].isalpha() and written:
            value = datetime.datetime.fromisoformat(written).replace(tzinfo=zoneinfo.ZoneInfo(region))
        else:
            value = datetime.datetime.fromisoformat(text.value)
        value = value.replace(tzinfo=datetime.UTC) if value.tzinfo is None else value.astimezone(datetime.UTC)
    except (ValueError, OverflowError, zoneinfo.ZoneInfoNotFoundError):
        example = "TIMESTAMP '2026-01-31 12:00:00', in UTC, or with an offset: TIMESTAMP '2026-01-31 12:00:00+01:00'"
        raise _not_a("timestamp", example, cursor, text) from None
    return Constant(value, _since(cursor, start))


def _not_a(what: str, example: str, cursor: Cursor, token: Token) -> ParseError:
    return ParseError(f"{token} is not a {what}", text=cursor.text, span=token.span, hint=f"write it as {example}")


def _since(cursor: Cursor, start: int) -> Span:
    return Span(start, cursor.end_of_last)


_WORDED: dict[str, Callable[[Cursor], Expression]] = {
    "TRUE": _named_constant,
    "FALSE": _named_constant,
    "NULL": _named_constant,
    "CASE": _case,
    "CAST": _cast,
    "EXISTS": _exists,
}
"""Reserved words that begin an expression."""

_TYPED: dict[str, Callable[[Cursor], Expression]] = {"INTERVAL": _interval, "DATE": _date, "TIMESTAMP": _timestamp}
"""Words that begin a constant only if a text or number follows; otherwise they are names."""
