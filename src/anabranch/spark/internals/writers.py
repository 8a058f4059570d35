"""Private calls about writers: the formats that Spark has, and its connections to databases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import SparkSession

from anabranch.spark.internals.driver import jvm_of


def require_format(spark: SparkSession, format: str) -> None:
    """Raises Spark's error if it has no format of this name.

    Spark's writer would fail only at the first batch. Without this call, sinks of Spark's formats are refused.
    """
    conf = spark._jsparkSession.sessionState().conf()
    jvm_of(spark).org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource(format, conf)


def jdbc_connection(spark: SparkSession, options: Mapping[str, str]) -> tuple[Any, Callable[[str], str]]:
    """Opens a `java.sql.Connection` in the driver as Spark's JDBC writer does.

    Returns it with the database's function that quotes names. A JDBC sink that replaces rows does not run without it.
    """
    jvm = jvm_of(spark)
    given = jvm.java.util.HashMap()
    for key, value in options.items():
        given.put(key, value)
    known = jvm.org.apache.spark.sql.execution.datasources.jdbc.JDBCOptions(jvm.PythonUtils.toScalaMap(given))
    dialect = jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(known.url())
    return dialect.createConnectionFactory(known).apply(-1), dialect.quoteIdentifier
