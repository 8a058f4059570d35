"""CQL, the continuous query language (Arasu, Babu and Widom 2006): compiles a text to a typed query.

Invariant: a compiled query refers only to columns of the catalog, and every coercion is an explicit cast, so the lower
packages need no type rules. Text that cannot be bound raises an error with its position.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.cql.binder import bind, bind_expression
from anabranch.cql.compiling import compile_plan, declared_results
from anabranch.cql.parser import parse, streams_read
from anabranch.lang.catalog import Catalog
from anabranch.plan.query import Query

__all__ = ["bind", "bind_expression", "compile_query", "declared_results", "parse", "streams_read"]


def compile_query(
    text: str, catalog: Catalog, *, allow_unbounded: bool = False, late_filters: Sequence[str] = ()
) -> Query:
    """Compiles a query text to its normal form: binds and rewrites it; `late_filters` names the deferred filters."""
    return compile_plan(text, bind(text, catalog, allow_unbounded=allow_unbounded), catalog, late_filters)
