"""User-defined functions inside Spark SQL, for filters or keys evaluated before the shuffle.

Each becomes an Arrow UDF of the session, one for each relation that calls it, so that an error can name the stream.
Spark evaluates a UDF for every row, regardless of surrounding conditions. So a UDF has an additional guard argument:
where the guard is not true, the function does not get the row, and the value is NULL.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.pandas.functions import ArrowUDFType, arrow_udf

from anabranch.engine.evaluate.own import call_own
from anabranch.errors import FunctionError
from anabranch.lang.expr import Call, Expr, OwnFunction, relations, walk
from anabranch.run.functions import named
from anabranch.spark.arrow_schema import data_type


def spark_name(call: Call) -> str:
    """Returns the name of the UDF of a call."""
    assert call.own is not None
    types = "_".join(str(argument.type) for argument in call.arguments)
    readable = "".join(letter if letter.isalnum() else "_" for letter in types)
    return f"anabranch_{call.own.name}_{'_'.join(sorted(relations(call)))}_{readable}"


def register_functions(spark: SparkSession, expressions: Iterable[Expr], stream: str) -> None:
    """Registers the functions called by expressions over a stream with the session."""
    for expression in expressions:
        for node in walk(expression):
            if isinstance(node, Call) and node.own is not None:
                spark.udf.register(spark_name(node), _udf(node.own, node, stream))


def _udf(own: OwnFunction, call: Call, stream: str):  # type: ignore[no-untyped-def]
    types = [argument.type for argument in call.arguments]
    returns = own.returns

    def compute(*values: pa.Array) -> pa.Array:
        *arguments, guard = values
        needed = guard.fill_null(False)
        typed = [argument.cast(kind) for argument, kind in zip(arguments, types, strict=True)]
        try:
            if needed.true_count == len(needed):
                return call_own(own, typed, len(needed))
            found = call_own(own, [each.filter(needed) for each in typed], needed.true_count)
        except FunctionError as error:
            raise named(error, [stream]) from error
        places = pa.compute.cumulative_sum(needed.cast(pa.int64()))
        return found.take(pa.compute.if_else(needed, pa.compute.subtract(places, 1), None))

    return arrow_udf(compute, data_type(returns, own.name), ArrowUDFType.SCALAR)


def travel_by_value(module: ModuleType) -> None:
    """Ships the functions of a module by value to workers that cannot import it."""
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
