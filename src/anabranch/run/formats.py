"""The file formats that Spark reads and writes by itself; sources and sinks of these formats need a path."""

from __future__ import annotations

FILE_FORMATS = frozenset({"parquet", "csv", "json", "orc", "text", "avro", "xml"})
TYPED_FORMATS = frozenset({"parquet", "orc", "avro"})
"""Formats whose files store the types of their columns."""
