"""The functions of CQL: their spellings, the types they take and give, and the coercions between.

`bind_call` turns a function and typed arguments into an expression whose arguments have exactly the types that the
kernel of that function takes, so that evaluators need no type rules. `FUNCTIONS` holds the canonical names, the only
values of `Call.function`; `SPELLINGS` maps what a user may write in call syntax to them. NULLIF and IF are spelled but
have no kernel: they become `case`. Rules raise ValueError(message) or ValueError(message, hint); whoever knows the
position in the text turns that into an error with a caret.

Law: coercion widens, it never narrows. Integers meet in bigint, integers and decimals in a decimal, anything with a
float in double, dates and timestamps in timestamp; text meets only text. A literal with a point is a double, except
beside a decimal, where it is the decimal it spells.
"""

from anabranch.functions.table import (
    AGGREGATES,
    FUNCTIONS,
    SPELLINGS,
    bind_aggregate,
    bind_call,
    bind_cast,
    is_nullable,
    makes_null,
)
from anabranch.functions.types import coerce, common_type, kind_of, type_named, without_widening

__all__ = [
    "AGGREGATES",
    "FUNCTIONS",
    "SPELLINGS",
    "bind_aggregate",
    "bind_call",
    "bind_cast",
    "coerce",
    "common_type",
    "is_nullable",
    "kind_of",
    "makes_null",
    "type_named",
    "without_widening",
]
