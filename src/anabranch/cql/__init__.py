"""CQL, the language of continuous queries (Arasu, Babu and Widom 2006): text in, a typed query out.

Law: what comes out refers to the catalog's columns only, with every coercion written out as a cast, so that no room
below needs type rules; what cannot be bound is an error that points at its place in the text.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.catalog import Catalog
from anabranch.cql.binder import bind
from anabranch.cql.parser import parse
from anabranch.plan.normal_form import normal_form
from anabranch.plan.query import Query
from anabranch.rewrite.pipeline import rewrite

__all__ = ["bind", "compile_query", "parse"]


def compile_query(
    text: str, catalog: Catalog, *, allow_unbounded: bool = False, late_filters: Sequence[str] = ()
) -> Query:
    """The normal form of a query text: bound, rewritten, and read off; `late_filters` are those that joins check."""
    return normal_form(text, rewrite(bind(text, catalog, allow_unbounded=allow_unbounded)), late_filters)
