"""Encodes values as JSON and decodes them: operators, their queries and expressions, wirings and views.

A frozen dataclass is written under its class name with all its fields, so a file is sufficient to run it. Only the
classes listed here can be decoded.

Invariant: `decode(encode(value)) == value` for every listed class. Limit: a deployment is read by the release that
wrote it.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import pyarrow as pa

from anabranch.errors import SiteError
from anabranch.lang.expr import AggregateCall, Call, Cast, Column, Literal, Ranking
from anabranch.lang.schema import Field, Schema
from anabranch.lang.window import Always, Window
from anabranch.place.landscape import Input, Operator
from anabranch.place.selection import Atom, Selection
from anabranch.place.view import Predicate, Slot, View
from anabranch.plan.join_graph import Band, JoinGraph, KeyClass, Part, Relation, Theta
from anabranch.plan.logical import Output, SideKind
from anabranch.plan.query import Grouping, Query
from anabranch.plan.sides import Side
from anabranch.run.links.shape import Shape
from anabranch.sites.operators import InputSpec, OperatorSpec
from anabranch.sites.wiring import Stretch, Wire, Wiring

_CLASSES = (
    *(AggregateCall, Call, Cast, Column, Literal, Band, JoinGraph, KeyClass, Part, Relation, Theta, Output),
    *(
        Ranking,
        Grouping,
        Side,
        Query,
        Field,
        Schema,
        Always,
        Window,
        Shape,
        InputSpec,
        OperatorSpec,
        Stretch,
        Wire,
        Wiring,
    ),
    *(Input, Operator, Atom, Selection, Predicate, Slot, View),
)
_BY_NAME = {each.__name__: each for each in _CLASSES}


def encode(value: Any) -> Any:
    """Returns the value in JSON-serializable form."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case tuple():
            return {"tuple": [encode(each) for each in value]}
        case list():
            return [encode(each) for each in value]
        case frozenset():
            # In a fixed order, so that equal values have equal texts.
            return {"set": sorted((encode(each) for each in value), key=lambda each: json.dumps(each, sort_keys=True))}
        case Mapping():
            return {"map": [[encode(key), encode(each)] for key, each in value.items()]}
        case SideKind():
            return {"side": value.value}
        case pa.DataType():
            packed = pa.schema([pa.field("", value)]).serialize().to_pybytes()
            return {"type": base64.b64encode(packed).decode()}
        case decimal.Decimal():
            return {"decimal": str(value)}
        case datetime.datetime():
            return {"datetime": value.isoformat()}
        case datetime.date():
            return {"date": value.isoformat()}
        case datetime.timedelta():
            return {"duration": [value.days, value.seconds, value.microseconds]}
        case _ if is_dataclass(value) and type(value).__name__ in _BY_NAME:
            return {type(value).__name__: {field.name: encode(getattr(value, field.name)) for field in fields(value)}}
    raise SiteError(f"a value of {type(value).__name__} cannot be part of a deployment", detail=repr(value)[:200])


def decode(value: Any) -> Any:
    """Returns the value that `encode` wrote."""
    if isinstance(value, list):
        return [decode(each) for each in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    match kind:
        case "tuple":
            return tuple(decode(each) for each in content)
        case "set":
            return frozenset(decode(each) for each in content)
        case "map":
            return {decode(key): decode(each) for key, each in content}
        case "type":
            return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(content))).field(0).type
        case "decimal":
            return decimal.Decimal(content)
        case "datetime":
            return datetime.datetime.fromisoformat(content)
        case "date":
            return datetime.date.fromisoformat(content)
        case "side":
            return SideKind(content)
        case "duration":
            return datetime.timedelta(*content)
    if kind not in _BY_NAME:
        raise SiteError(
            f"a deployment file has a '{kind}', which is not known", hint="run it with the release that wrote it"
        )
    return _BY_NAME[kind](**{name: decode(each) for name, each in content.items()})
