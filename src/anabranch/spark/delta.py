"""Delta tables read without Spark's connector, by the library `deltalake`: opens them, and reads them as lookup tables.

Invariant: `delta_version` changes whenever `read_delta` would return other rows. Limit: the rows pass through the
memory of the driver, as those of every lookup table; credentials of object storage come from the environment.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from anabranch.errors import AnabranchError, CatalogError, SpecError, installation
from anabranch.run.files.delta import delta_uri

try:
    import deltalake
    from deltalake.exceptions import TableNotFoundError

    is_installed = True
except ImportError:
    is_installed = False


def open_delta(path: str) -> Any:
    """Returns the Delta table at a location, or None; raises an error if the extra `delta` is missing."""
    if not is_installed:
        raise SpecError("format 'delta' needs the package 'deltalake'", hint=installation("delta"))
    try:
        return deltalake.DeltaTable(delta_uri(path))
    except TableNotFoundError:
        return None


def read_delta(spark: SparkSession, name: str, path: str) -> DataFrame:
    """Returns the rows of the newest version of a Delta table."""
    with _named(name, path):
        return spark.createDataFrame(_existing(path).to_pyarrow_table())


def delta_version(name: str, path: str) -> int:
    """Returns the number of the newest version of a Delta table."""
    with _named(name, path):
        return int(_existing(path).version())


def _existing(path: str) -> Any:
    table = open_delta(path)
    if table is None:
        raise FileNotFoundError("there is no Delta table")
    return table


@contextmanager
def _named(name: str, path: str) -> Iterator[None]:
    try:
        yield
    except AnabranchError:
        raise
    except Exception as error:
        raise CatalogError(
            f"table '{name}' cannot be read",
            detail=f"Delta table '{path}': {str(error).partition(chr(10))[0]}",
            hint="check its path, and the credentials in the environment",
        ) from error
