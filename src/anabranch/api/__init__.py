"""The Python API: register streams, compile CQL, explain plans, start, watch and stop queries.

It follows PySpark: `session.sql(…).writeStream.format(…).start()` reads as a Spark user expects. `sql` compiles the
query and reports errors in its text. `start` reports errors in its plan or its sink before anything runs. Registering a
stream again does not change queries that are already compiled.

Invariant: settings are frozen values (`settings`). Writers build them, and a `run` uses them for one query or several.
"""

from anabranch.api.frame import Frame
from anabranch.api.query import ContinuousQuery
from anabranch.api.session import Session
from anabranch.api.together import Together
from anabranch.api.writer import ContinuousQueryWriter
from anabranch.spark.handle import QueryHandle
from anabranch.spark.started import ContinuousQueries

__all__ = [
    "ContinuousQueries",
    "ContinuousQuery",
    "ContinuousQueryWriter",
    "Frame",
    "QueryHandle",
    "Session",
    "Together",
]
