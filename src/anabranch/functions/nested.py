"""Type rules for struct fields, array elements and map values."""

from __future__ import annotations

import pyarrow as pa

from anabranch.functions.arguments import Arguments, wrong
from anabranch.functions.types import BIGINT, NULL, STRING, coerce, kind_of
from anabranch.lang.expr import Call, Expr, Literal
from anabranch.lang.schema import is_text, type_name


def struct_field(name: str, arguments: Arguments) -> Expr:
    value, wanted = arguments
    assert isinstance(wanted, Literal)
    assert isinstance(wanted.value, str)
    if not pa.types.is_struct(value.type):
        raise ValueError(
            f"a value of type {type_name(value.type)} has no field '{wanted.value}'", "only structs have fields"
        )
    found = next((field for field in value.type if field.name.lower() == wanted.value.lower()), None)
    if found is None:
        raise ValueError(
            f"{type_name(value.type)} has no field '{wanted.value}'",
            f"its fields are {', '.join(field.name for field in value.type)}",
        )
    return Call(name, (value, Literal(found.name, STRING)), found.type)


def element(name: str, arguments: Arguments) -> Expr:
    """Binds an array element by its position from 0, or a map value by its key; NULL if there is none."""
    if len(arguments) != 2:
        raise wrong(name, "an array and a position, or a map and a key", arguments)
    value, place = arguments
    kind = value.type
    if pa.types.is_map(kind):
        if not is_text(kind.key_type) or kind_of(place.type) not in {"text", NULL} or not isinstance(place, Literal):
            raise ValueError(
                f"a value of {type_name(kind)} is found by a string literal, found {type_name(place.type)}",
                "write m['key']; maps with other keys can only pass through a query",
            )
        return Call(name, (value, coerce(place, STRING)), kind.item_type)
    if not pa.types.is_list(kind):
        raise ValueError(
            f"a value of type {type_name(kind)} has no elements", "only arrays have positions, and maps keys"
        )
    if kind_of(place.type) not in {"integer", NULL}:
        raise ValueError(f"the position in an array is a whole number, found {type_name(place.type)}", "count from 0")
    return Call(name, (value, coerce(place, BIGINT)), kind.value_type)


def size(name: str, arguments: Arguments) -> Expr:
    if len(arguments) != 1 or not pa.types.is_list(arguments[0].type):
        raise wrong(name, "one array", arguments)
    return Call(name, arguments, BIGINT)
