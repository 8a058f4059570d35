"""The functions of CQL: their spellings, argument and result types, and coercions.

`bind_call` turns a function and typed arguments into an expression whose arguments have exactly the types of the
function's kernel, so evaluators need no type rules. `FUNCTIONS` holds the canonical names, the only values of
`Call.function`; `SPELLINGS` maps the names of call syntax to them. NULLIF and IF have no kernel: they become `case`.
Rules raise ValueError(message) or ValueError(message, hint); the caller adds the position in the text.

Invariant: coercion widens, it never narrows. The common type of integers is bigint; of integers and decimals a decimal;
of anything with a float double; of dates and timestamps timestamp. Text is never coerced. A literal with a decimal
point is a double, except beside a decimal, where it is the exact decimal.
"""

from anabranch.functions.aggregates import AGGREGATES, APPROXIMATE, BY_TIME, bind_aggregate, filtered
from anabranch.functions.own import bind_own, own_function
from anabranch.functions.table import (
    FUNCTIONS,
    SPELLINGS,
    below_casts,
    bind_call,
    bind_cast,
    is_nullable,
)
from anabranch.functions.types import coerce, common_type, kind_of, type_named, without_widening

__all__ = [
    "AGGREGATES",
    "APPROXIMATE",
    "BY_TIME",
    "FUNCTIONS",
    "SPELLINGS",
    "below_casts",
    "bind_aggregate",
    "bind_call",
    "bind_cast",
    "bind_own",
    "coerce",
    "common_type",
    "filtered",
    "is_nullable",
    "kind_of",
    "own_function",
    "type_named",
    "without_widening",
]
