"""GET_JSON_OBJECT: extracts a value from a JSON text by a path.

It is implemented like a user-defined function, so that the engine and Spark's filters read every text in the same way:
invalid JSON gives NULL, where Spark's own function may read a part of it. Each distinct text is parsed once.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa

from anabranch.functions.arguments import Arguments, widened, wrong
from anabranch.functions.types import STRING
from anabranch.lang.expr import OWN, Call, Expr, Literal, OwnFunction

_STEP = re.compile(r"\.([A-Za-z_][A-Za-z_0-9]*)|\['([^'\\]*)'\]|\[([0-9]+)\]")


class _Number(str):
    """A number as it is written."""


def json_steps(path: str) -> tuple[str | int, ...]:
    """Returns the names and positions of a path such as `$.a.b[0]`; raises ValueError if the path is not supported.

    >>> json_steps("$.a['b c'][0]")
    ('a', 'b c', 0)
    """
    steps: list[str | int] = []
    at = 1
    while at < len(path) or not path.startswith("$"):
        found = _STEP.match(path, at) if path.startswith("$") else None
        if found is None:
            raise ValueError(f"'{path}' is not a path into JSON", "write $.name, $['any name'] and $.list[0]")
        steps.append(int(found[3]) if found[3] is not None else found[1] if found[1] is not None else found[2])
        at = found.end()
    return tuple(steps)


def json_value(name: str, arguments: Arguments) -> Expr:
    expected = "(string, a path such as '$.name')"
    if len(arguments) != 2 or not isinstance(arguments[1], Literal) or not isinstance(arguments[1].value, str):
        raise wrong(name, expected, arguments)
    if not json_steps(arguments[1].value):
        raise ValueError("the path '$' is the whole text", "select the column itself")
    return Call(OWN, widened(name, expected, arguments, (STRING, STRING)), STRING, _FUNCTION)


def _values(texts: pa.Array, paths: pa.Array) -> pa.Array:
    steps = json_steps(paths[0].as_py())
    distinct = texts.dictionary_encode()
    found = pa.array([_value(text, steps) for text in distinct.dictionary.to_pylist()], pa.string())
    return found.take(distinct.indices)


def _value(text: str, steps: tuple[str | int, ...]) -> str | None:
    try:
        value: Any = json.loads(text, parse_float=_Number, parse_int=_Number, object_pairs_hook=_first)
    except (ValueError, RecursionError):
        return None
    for step in steps:
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) and step < len(value) else None
        else:
            value = value.get(step) if isinstance(value, dict) else None
    if value is None or isinstance(value, str):
        return value
    return _written(value)


def _first(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Keeps the first of two fields with one name."""
    return dict(reversed(pairs)) if len({name for name, _ in pairs}) < len(pairs) else dict(pairs)


def _written(value: Any) -> str:
    match value:
        case _Number():
            return str(value)
        case dict():
            return "{" + ",".join(f"{_written(key)}:{_written(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ",".join(map(_written, value)) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False)


_FUNCTION = OwnFunction("get_json_object", STRING, (STRING, STRING), "arrow", True, "", True, _values)
