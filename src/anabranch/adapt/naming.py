"""The names of heavy keys in records and progress: by a hash, or by value where the user allows it.

A key may be personal data, so its value is shown only with `show_keys`. Values of types that do not fit a code, such as
text, are not known to the driver; these keys keep their hash.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa

from anabranch.lang.schema import is_integer
from anabranch.plan.heavy import HeavyKey
from anabranch.plan.join_graph import JoinGraph

NameKey: TypeAlias = Callable[[HeavyKey], str]
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def by_hash(key: HeavyKey) -> str:
    """The hash of the value, after the name of its key class."""
    return key.name


def by_value(graph: JoinGraph) -> NameKey:
    """The value itself, after the expressions that are compared; a hash where the code does not tell the value."""
    classes = {key.name: key for key in graph.keys}

    def name(key: HeavyKey) -> str:
        compared = classes[key.code]
        value = _value(key.value, compared.type)
        return key.name if value is None else f"{compared} = {value}"

    return name


def _value(code: int, kind: pa.DataType) -> str | None:
    if is_integer(kind):
        return str(code)
    if pa.types.is_boolean(kind):
        return str(bool(code)).lower()
    if pa.types.is_date32(kind):
        return (_EPOCH + datetime.timedelta(days=code)).date().isoformat()
    if pa.types.is_timestamp(kind):
        return (_EPOCH + datetime.timedelta(microseconds=code)).isoformat()
    return None
