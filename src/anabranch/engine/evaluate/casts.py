"""Casts with the rules of Spark's ANSI mode: a value that does not fit is an error, never a NULL or a wrap.

Casts to integers truncate fractions toward zero; casts to decimals round half away from zero. Times are UTC, and a
number means seconds since the epoch. Casts read strings in their plain forms, with blanks around them. Those forms are
public: Spark reads more forms, and the Spark host restricts it to these. Limit: only the years 1 to 9999 have a written
form.
"""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.engine.evaluate.digits import (
    decimals_from_text,
    decimals_to_floats,
    decimals_to_text,
    floats_to_text,
)
from anabranch.engine.evaluate.numbers import from_numbers, numbers, validity
from anabranch.lang.schema import TIMESTAMP, is_decimal, is_float, is_integer, is_text, type_name

_SECOND = 1_000_000
SECONDS_LIMIT = 2**63 // _SECOND
"""A number can become a timestamp if its absolute value is smaller than this: 292,000 years in seconds."""
FIRST_DAY, LAST_DAY = -719_162, 2_932_896
"""The first day of the year 1 and the last of the year 9999, since the epoch."""
DAY = 86_400 * _SECOND

_BLANKS = "".join(chr(code) for code in range(33)) + "\x7f"
_WHOLE = r"^[+-]?[0-9]+$"
NUMBER_FORM = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
FLOAT_FORM = rf"{NUMBER_FORM}|(?i:[+-]?inf(?:inity)?|nan)"
_DAY_FORM = r"(?P<year>[0-9]{4})(?:-(?P<month>[0-9]{1,2})(?:-(?P<day>[0-9]{1,2})"
_ZONE_FORM = r" *(?:Z|UTC|GMT|(?P<sign>[+-])(?P<offset>[0-9]{1,2}(?::[0-9]{2})?|[0-9]{4}))?"
_CLOCK_FORM = (
    r"(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{1,2})"
    rf"(?::(?P<second>[0-9]{{1,2}})(?:\.(?P<fraction>[0-9]*))?{_ZONE_FORM})?"
)
DATE_FORM = rf"{_DAY_FORM}(?:[ T](?s:.*))?)?)?"
TIMESTAMP_FORM = rf"{_DAY_FORM}(?:[ T]{_CLOCK_FORM})?)?)?"
_TRUE = ["t", "true", "y", "yes", "1"]
_FALSE = ["f", "false", "n", "no", "0"]
_WIDEST_ZONE = 18 * 60


def cast(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Casts the values; pa.ArrowInvalid names the first value that does not fit."""
    source = values.type
    if source == target:
        return values
    if pa.types.is_null(source):
        return pa.nulls(len(values), target)
    if is_text(source):
        return _from_text(values if is_text(target) else pc.utf8_trim(values, characters=_BLANKS), target)
    if is_text(target):
        return _to_text(values).cast(target)
    if pa.types.is_timestamp(source) or pa.types.is_date32(source):
        return _from_time(values, target)
    if pa.types.is_timestamp(target):
        return _to_timestamp(values)
    if pa.types.is_boolean(target):
        return pc.not_equal(values, pa.scalar(Decimal(0) if is_decimal(source) else 0, source))
    if pa.types.is_boolean(source):
        values, source = values.cast(pa.int64()), pa.int64()
    if is_integer(target):
        return _to_integer(values, target)
    if is_float(target):
        if is_decimal(source):
            # From the digits: a conversion through double would round twice.
            return decimals_to_floats(values) if target == pa.float64() else decimals_to_text(values).cast(target)
        return values.cast(target, safe=False)
    if is_decimal(target):
        return _to_decimal(values, target)
    raise AssertionError(f"no cast from {source} to {target}")


def _to_integer(values: pa.Array, target: pa.DataType) -> pa.Array:
    if is_decimal(values.type):
        options = pc.CastOptions(pa.int64(), allow_decimal_truncate=True)
        return pc.cast(values, options=options).cast(target)
    if is_float(values.type):
        valid = validity(values)
        whole = np.trunc(np.asarray(numbers(values), dtype=np.float64))
        fits = (whole >= -(2.0**63)) & (whole < 2.0**63)
        if not (fits | ~valid).all():
            raise _misfit(values, fits | ~valid, target)
        return from_numbers(np.where(fits, whole, 0.0).astype(np.int64), valid, pa.int64()).cast(target)
    return values.cast(target)


def _to_decimal(values: pa.Array, target: pa.DataType) -> pa.Array:
    if is_float(values.type):
        floats = values.cast(pa.float64())
        finite = pc.is_finite(floats)
        # Spark takes a float's written digits; NaN and infinities have none and give NULL.
        return decimals_from_text(pc.if_else(finite, floats, pa.scalar(None, pa.float64())).cast(pa.string()), target)
    if is_integer(values.type):
        values = values.cast(pa.int64()).cast(pa.decimal128(19, 0))
    # 256 bits hold every decimal at every scale; intermediate values in Arrow's 128 bits could wrap silently.
    wide = values.cast(pa.decimal256(76, max(values.type.scale, target.scale)))
    if values.type.scale > target.scale:
        wide = pc.round(wide, ndigits=target.scale, round_mode="half_towards_infinity")
    return wide.cast(pa.decimal256(76, target.scale)).cast(target)


def _to_text(values: pa.Array) -> pa.Array:
    kind = values.type
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        _require_written_year(values)
    if is_float(kind):
        return floats_to_text(values)
    if is_decimal(kind):
        return decimals_to_text(values)
    if pa.types.is_timestamp(kind):
        written = values.cast(pa.int64()).cast(pa.timestamp("us")).cast(pa.string())
        return pc.replace_substring_regex(written, r"\.?0*$", "")
    return values.cast(pa.string())


def _require_written_year(values: pa.Array) -> None:
    is_date = pa.types.is_date32(values.type)
    places = np.asarray(numbers(values.cast(pa.int32() if is_date else pa.int64())), dtype=np.int64)
    days = places if is_date else np.floor_divide(places, DAY)
    fine = ((days >= FIRST_DAY) & (days <= LAST_DAY)) | ~validity(values)
    if not fine.all():
        unit = "days" if is_date else "microseconds"
        raise pa.ArrowInvalid(f"{places[int(np.argmin(fine))]} {unit} since 1970 are not in the years 1 to 9999")


def _from_time(values: pa.Array, target: pa.DataType) -> pa.Array:
    if pa.types.is_date32(values.type):
        return values.cast(pa.timestamp("us")).cast(target)
    plain = values.cast(pa.int64())
    if pa.types.is_date32(target):
        return plain.cast(pa.timestamp("us")).cast(target)
    if pa.types.is_timestamp(target):
        return values.cast(target)
    if is_integer(target):
        whole = np.floor_divide(numbers(plain), _SECOND)
        return from_numbers(whole, validity(plain), pa.int64()).cast(target)
    if is_decimal(target):
        units = plain.cast(pa.decimal128(19, 0))
        seconds = pa.Array.from_buffers(pa.decimal128(19, 6), len(units), units.buffers(), offset=units.offset)
        return _to_decimal(seconds, target)
    fractions = pc.divide(plain.cast(pa.float64(), safe=False), float(_SECOND))
    return cast(fractions, target)


def _to_timestamp(values: pa.Array) -> pa.Array:
    _require_seconds(values)
    if is_float(values.type):
        micros = _to_integer(pc.multiply(values.cast(pa.float64()), float(_SECOND)), pa.int64())
    elif is_decimal(values.type):
        wide = _to_decimal(values, pa.decimal128(38, max(values.type.scale, 6)))
        options = pc.CastOptions(pa.decimal128(38, 6), allow_decimal_truncate=True)
        scaled = pc.cast(wide, options=options)
        micros = pa.Array.from_buffers(pa.decimal128(38, 0), len(scaled), scaled.buffers()).cast(pa.int64())
    else:
        micros = pc.multiply(values.cast(pa.int64()), _SECOND)
    return micros.cast(TIMESTAMP)


def _require_seconds(values: pa.Array) -> None:
    size = np.abs(np.asarray(numbers(cast(values, pa.float64())), dtype=np.float64))
    fine = (size < SECONDS_LIMIT) | ~validity(values)
    if not fine.all():
        raise _misfit(values, fine, TIMESTAMP)


# --- reading strings -------------------------------------------------------------------------------------------------


def _from_text(texts: pa.Array, target: pa.DataType) -> pa.Array:
    if is_text(target):
        return texts.cast(target)
    if is_integer(target):
        return _unsigned(_matching(texts, _WHOLE, target)).cast(pa.int64()).cast(target)
    if is_float(target):
        return _unsigned(_matching(texts, rf"^(?:{FLOAT_FORM})$", target)).cast(target)
    if is_decimal(target):
        return decimals_from_text(_matching(texts, rf"^(?:{NUMBER_FORM})$", target).cast(pa.string()), target)
    if pa.types.is_boolean(target):
        lowered = pc.utf8_lower(texts)
        yes = pc.is_in(lowered, value_set=pa.array(_TRUE, lowered.type))
        known = pc.is_in(lowered, value_set=pa.array(_TRUE + _FALSE, lowered.type))
        _require(texts, known.to_numpy(zero_copy_only=False), target)
        return pc.if_else(texts.is_valid(), yes, pa.scalar(None, pa.bool_()))
    if pa.types.is_date32(target):
        days, valid = _days(texts, pc.extract_regex(texts, rf"^{DATE_FORM}$"), target)
        return from_numbers(days.astype(np.int32), valid, pa.int32()).cast(target)
    assert pa.types.is_timestamp(target), target
    parts = pc.extract_regex(texts, rf"^{TIMESTAMP_FORM}$")
    days, valid = _days(texts, parts, target)
    field = {name: _field(parts, name, 0) for name in ("hour", "minute", "second")}
    _require(texts, (field["hour"] < 24) & (field["minute"] < 60) & (field["second"] < 60), target)
    fraction = pc.utf8_slice_codeunits(pc.utf8_rpad(parts.field("fraction"), width=6, padding="0"), 0, 6)
    micros = numbers(pc.fill_null(fraction, "0").cast(pa.int64()))
    minutes = 1440 * days + 60 * field["hour"] + field["minute"] - _zone_minutes(texts, parts, target)
    return from_numbers((60 * minutes + field["second"]) * _SECOND + micros, valid, pa.int64()).cast(target)


def _zone_minutes(texts: pa.Array, parts: pa.StructArray, target: pa.DataType) -> np.ndarray:
    """Offsets of the matched zones from UTC, at most 18 hours."""
    digits = pc.replace_substring(pc.fill_null(parts.field("offset"), ""), ":", "")
    written = numbers(pc.if_else(pc.equal(digits, ""), "0", digits).cast(pa.int64()))
    hours_alone = pc.less_equal(pc.utf8_length(digits), 2).to_numpy(zero_copy_only=False)
    hours, minutes = np.where(hours_alone, written, written // 100), np.where(hours_alone, 0, written % 100)
    zone = 60 * hours + minutes
    _require(texts, (minutes < 60) & (zone <= _WIDEST_ZONE), target)
    behind = np.asarray(pc.fill_null(pc.equal(parts.field("sign"), "-"), False).to_numpy(zero_copy_only=False))
    return np.where(behind, -zone, zone)


def _days(texts: pa.Array, parts: pa.StructArray, target: pa.DataType) -> tuple[np.ndarray, np.ndarray]:
    """Days since the epoch of the matched dates; month and day are optional."""
    _require(texts, parts.is_valid().to_numpy(zero_copy_only=False), target)
    year, month, day = _field(parts, "year", 1970), _field(parts, "month", 1), _field(parts, "day", 1)
    months = (12 * (year - 1970) + month - 1).astype("datetime64[M]")
    first = months.astype("datetime64[D]").astype(np.int64)
    following = (months + 1).astype("datetime64[D]").astype(np.int64)
    _require(texts, (month >= 1) & (month <= 12) & (day >= 1) & (day <= following - first) & (year >= 1), target)
    return first + day - 1, validity(texts)


def _field(parts: pa.StructArray, name: str, missing: int) -> np.ndarray:
    texts = parts.field(name)
    given = pc.if_else(pc.equal(texts, ""), pa.scalar(None, texts.type), texts)
    present = pc.if_else(parts.is_valid(), given, pa.scalar(None, texts.type))
    return np.asarray(pc.fill_null(present.cast(pa.int64()), missing).to_numpy(zero_copy_only=False))


def _unsigned(texts: pa.Array) -> pa.Array:
    """Removes a leading plus, which Arrow does not read."""
    return pc.replace_substring_regex(texts, r"^\+", "")


def _matching(texts: pa.Array, form: str, target: pa.DataType) -> pa.Array:
    matched = pc.fill_null(pc.match_substring_regex(texts, form), True)
    _require(texts, matched.to_numpy(zero_copy_only=False), target)
    return texts


def _require(texts: pa.Array, good: np.ndarray, target: pa.DataType) -> None:
    fine = good | ~validity(texts)
    if not fine.all():
        raise _misfit(texts, fine, target)


def _misfit(values: pa.Array, fine: np.ndarray, target: pa.DataType) -> pa.ArrowInvalid:
    return pa.ArrowInvalid(f"'{values[int(np.argmin(fine))].as_py()}' is not a {type_name(target)}")
