"""Regular-expression kernels, based on Arrow's RE2."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

from anabranch.engine.evaluate.compare import Datum
from anabranch.functions.patterns import regex


def rlike(text: Datum, pattern: pa.Scalar) -> Datum:
    if not pattern.is_valid:
        return pa.scalar(None, pa.bool_())
    return pc.match_substring_regex(text, pattern.as_py())


def regexp_extract(text: Datum, pattern: pa.Scalar, group: pa.Scalar) -> Datum:
    """Returns a group of the first match; an empty string where nothing matches, as in Spark."""
    found = pc.extract_regex(text, regex(pattern.as_py()).extracting(group.as_py()))
    return pc.if_else(pc.is_null(text), pa.scalar(None, pa.string()), pc.coalesce(pc.struct_field(found, "g"), ""))


def regexp_replace(text: Datum, pattern: pa.Scalar, by: pa.Scalar) -> Datum:
    return pc.replace_substring_regex(text, pattern.as_py(), re.sub(r"\$(\d)", r"\\\1", by.as_py()))
