"""JSON schemas: the required shape of a value read from disk, checked before use.

A shape is a type, None, a tuple of alternative shapes, a list of one shape for all items, or a mapping: names with
their shapes (a name that ends in `?` may be missing), or `*` for any names. Integers must fit into 64 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

Shape: TypeAlias = Any
ANY_NAME = "*"
_LIMIT = 1 << 63


def misfit(value: Any, shape: Shape, path: str = "") -> str | None:
    """Returns the path of the first value that does not fit, and the expected shape there, as text; None if all values
    fit.
    """
    place = path or "the whole"
    if isinstance(shape, tuple):
        fits = any(misfit(value, each, path) is None for each in shape)
        return None if fits else f"{place} is a {type(value).__name__}"
    if shape is None or isinstance(shape, type):
        return _of_type(value, shape, place)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{place} is a {type(value).__name__}, not a list"
        found = (misfit(each, shape[0], f"{path}[{number}]") for number, each in enumerate(value))
        return next((each for each in found if each is not None), None)
    return _of_names(value, shape, path)


def _of_type(value: Any, kind: type | None, place: str) -> str | None:
    if kind is None:
        return None if value is None else f"{place} is a {type(value).__name__}, not null"
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        return f"{place} is a {type(value).__name__}, not a {kind.__name__}"
    if isinstance(value, int) and not -_LIMIT <= value < _LIMIT:
        return f"{place} is too large"
    return None


def _of_names(value: Any, shape: Mapping[str, Shape], path: str) -> str | None:
    if not isinstance(value, Mapping):
        return f"{path or 'the whole'} is a {type(value).__name__}, not an object"
    if ANY_NAME in shape:
        found = (misfit(each, shape[ANY_NAME], f"{path}.{name}".lstrip(".")) for name, each in value.items())
        return next((each for each in found if each is not None), None)
    for name, inner in shape.items():
        key = name.removesuffix("?")
        if key not in value:
            if name.endswith("?"):
                continue
            return f"{f'{path}.{key}'.lstrip('.')} is missing"
        if (wrong := misfit(value[key], inner, f"{path}.{key}".lstrip("."))) is not None:
            return wrong
    return None
