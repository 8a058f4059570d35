"""Windows for placement: ranges, in which every row has its own deadline, independent of other rows.

In a grouped query, `[HOP size SLIDE step]` is a range of one microsecond less than its size: the boundaries of the
query, which exclude their end, determine the rows of a group. `[TUMBLE size]` is such a range too if groups are
answered every `size`: a combination of rows of two windows counts at no boundary, so joining it is only unnecessary
work.
"""

from __future__ import annotations

from dataclasses import replace

from anabranch.lang.window import Hop, Tumble, Window
from anabranch.plan.query import Query
from anabranch.plan.renaming import rewritten


def as_ranges(query: Query) -> Query:
    """Returns a query with the same results, with ranges as windows where that is possible."""
    if query.grouping is None:
        return query
    slide = query.grouping.slide
    return rewritten(query, lambda each: each, lambda each: replace(each, window=_range(each.window, slide)))


def _range(window: Window, slide: int) -> Window:
    is_hop = type(window) is Hop
    is_tumble = type(window) is Tumble and window.range is not None and window.range + 1 == slide
    return Window(window.range, window.slide) if is_hop or is_tumble else window
