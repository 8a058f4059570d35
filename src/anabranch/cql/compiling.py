"""Compiles a bound plan to a query in normal form, together with the queries that it reads.

A subquery in FROM becomes a separate query, identified by its fingerprint: texts with the same subquery read the same
query. If an alias inside the subquery names a different stream than outside, it is prefixed with the alias of the
subquery, because a set of queries identifies a relation by its alias.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from anabranch.lang.catalog import Catalog, StreamDeclaration
from anabranch.lang.window import FOREVER
from anabranch.plan.logical import LogicalPlan, Source, result_schema, sources_of, with_sources
from anabranch.plan.normal_form import normal_form
from anabranch.plan.query import Query, derived_name
from anabranch.plan.renaming import renamed
from anabranch.rewrite.pipeline import rewrite


def compile_plan(text: str, plan: LogicalPlan, catalog: Catalog, late_filters: Sequence[str] = ()) -> Query:
    """Rewrites a bound plan and returns its normal form, with the queries whose results it reads."""
    found: dict[str, Query] = {}
    known = {source.relation: (source.stream, source.is_result) for source in sources_of(plan).values()}

    def compiled(source: Source) -> Source:
        if source.subquery is None:
            declared = catalog.find(source.stream)
            if source.is_result and declared is not None:
                assert isinstance(declared.query, Query)
                found[declared.name] = declared.query
                return replace(source, behind=_behind(declared.query, source))
            return source
        names = []
        behind = 0
        for each in (source.subquery, *source.others):
            inner = compile_plan(each.text, each.plan, catalog)
            inner = _apart(inner, source.relation, known, catalog)
            while derived_name(inner) in names:
                # The same query twice in a UNION ALL: its results count twice.
                aliases = {name: f"{source.relation}_{name}" for name in inner.whole.names}
                known.update({aliases[each.name]: (each.stream, each.is_result) for each in inner.whole.relations})
                inner = renamed(inner, aliases, {})
            names.append(derived_name(inner))
            found[names[-1]] = inner
            behind = max(behind, _behind(inner, source))
        if not source.others:
            return replace(source, stream=names[0], subquery=None, behind=behind)
        digest = hashlib.sha256(" ".join(names).encode()).hexdigest()[:8]
        return replace(source, stream=f"union_{digest}", branches=tuple(names), subquery=None, others=(), behind=behind)

    query = normal_form(text, rewrite(with_sources(plan, compiled)), late_filters)
    return replace(query, inputs=tuple(sorted(found.items(), key=lambda item: item[0])))


def results_behind(source: Source, column: str, catalog: Catalog) -> int | None:
    """Returns how far below its watermark a query has results by that event time; None if it is no event time."""
    if source.subquery is not None:
        several = (source.subquery, *source.others)
        found = [compile_plan(each.text, each.plan, catalog).behind(column) for each in several]
        known = [each for each in found if each is not None]
        return max(known) if len(known) == len(found) else None
    declared = catalog.find(source.stream)
    assert declared is not None
    assert isinstance(declared.query, Query)
    return declared.query.behind(column)


def _behind(query: Query, source: Source) -> int:
    found = query.behind(source.event_time)
    assert found is not None, "the binder checked it"
    return found


def declared_results(name: str, query: Query) -> StreamDeclaration:
    """Returns the results of a query as a stream that other queries may read."""
    return StreamDeclaration(name, result_schema(query.outputs), "", FOREVER, query)


def _apart(inner: Query, alias: str, known: dict[str, tuple[str, bool]], catalog: Catalog) -> Query:
    """Renames aliases of a subquery that mean something else in the rest of the text; adds its aliases to `known`."""
    streams: dict[str, str] = {}
    inputs: dict[str, Query] = {}
    for name, below in inner.inputs:
        if catalog.find(name) is None:
            below = _apart(below, alias, known, catalog)
            streams[name] = name = derived_name(below)
        inputs[name] = below
    names = {}
    for relation in inner.whole.relations:
        name, source = relation.name, (streams.get(relation.stream, relation.stream), relation.is_result)
        while known.setdefault(name, source) != source:
            name = f"{alias}_{name}"
        names[relation.name] = name
    ordered = tuple(sorted(inputs.items(), key=lambda item: item[0]))
    return renamed(replace(inner, inputs=ordered), names, streams)
