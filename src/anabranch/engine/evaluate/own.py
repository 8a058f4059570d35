"""Calls user-defined functions over Arrow arrays.

A function receives whole columns. By default it does not receive rows with a NULL argument: they give NULL. Its result
must have one value per row, of the declared type or one that Arrow casts to it without loss. An exception becomes a
FunctionError that names the function; the host adds the stream of the rows and the batch.

Limit: a function is trusted to be deterministic; nothing checks it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.engine.evaluate.numbers import validity
from anabranch.errors import FunctionError
from anabranch.lang.expr import OwnFunction
from anabranch.lang.schema import type_name


def call_own(own: OwnFunction, arguments: Sequence[pa.Array], length: int) -> pa.Array:
    """Returns the values of the function for each of `length` rows."""
    if not length:
        return pa.nulls(0, own.returns)
    if not own.skips_nulls:
        return _called(own, arguments, length)
    valid = validity(*arguments)
    if valid.all():
        return _called(own, arguments, length)
    if not valid.any():
        return pa.nulls(length, own.returns)
    chosen = pa.array(valid)
    values = _called(own, [argument.filter(chosen) for argument in arguments], int(valid.sum()))
    return values.take(pa.array(np.cumsum(valid) - 1, pa.int64(), mask=~valid))


def _called(own: OwnFunction, arguments: Sequence[pa.Array], length: int) -> pa.Array:
    try:
        match own.kind:
            case "arrow":
                result: Any = own.code(*arguments)
            case "pandas":
                result = own.code(*(argument.to_pandas() for argument in arguments))
            case _:
                rows = zip(*(argument.to_pylist() for argument in arguments), strict=True)
                result = [own.code(*row) for row in rows]
    except Exception as error:
        raise FunctionError(
            f"function '{own.name}' failed",
            detail=f"{type(error).__name__}: {error}",
            hint="the batch is not committed; guard the call against such values, or change the function",
        ) from error
    return _as_declared(own, result, length)


def _as_declared(own: OwnFunction, result: Any, length: int) -> pa.Array:
    if isinstance(result, pa.ChunkedArray):
        result = result.combine_chunks()
    try:
        if not isinstance(result, pa.Array):
            result = _array(own, result)
        values = result if result.type == own.returns else result.cast(own.returns)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise FunctionError(
            f"function '{own.name}' returned values that are not of type {type_name(own.returns)}",
            detail=str(error),
            hint="declare another type with 'returns', or convert the values in the function",
        ) from error
    if len(values) != length:
        raise FunctionError(
            f"function '{own.name}' gave {len(values)} values for {length} rows",
            hint="return one value per row; register a function of single values with kind='scalar'",
        )
    return values


def _array(own: OwnFunction, result: Any) -> pa.Array:
    if own.kind == "arrow" and not isinstance(result, np.ndarray):
        raise FunctionError(
            f"function '{own.name}' gave {type(result).__name__}, not an Arrow array",
            hint="return a pyarrow or numpy array, or register it with kind='pandas' or kind='scalar'",
        )
    if own.kind == "pandas" or isinstance(result, np.ndarray):
        return pa.array(result, from_pandas=own.kind == "pandas")
    return pa.array(result, own.returns)
