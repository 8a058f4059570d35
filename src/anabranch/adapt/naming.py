"""Names heavy keys in records and progress: by a hash or, if the user allows it, by value.

A key may be personal data, so its value is shown only with `show_keys`. Limit: the driver has only the code of a key.
For types whose values cannot be restored from the code, such as text, the name has the hash.
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
    """Returns the name of the key class and the hash of the value."""
    return key.name


def by_value(graph: JoinGraph) -> NameKey:
    """Returns a function that names a key by its expressions and its value, or by hash if the value is unknown."""
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
