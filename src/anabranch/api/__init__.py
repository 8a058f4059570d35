"""The public face: register streams, submit CQL, look at plans, start, watch and stop queries.

It follows PySpark's manner wherever PySpark has one, so that `session.sql(…).writeStream.format(…).start()` reads as
any Spark user expects. A query is compiled when it is submitted: what is wrong with its text, its plan or its sink is
said before anything runs, and a stream registered anew does not change a query that was compiled before.
"""

from anabranch.api.query import ContinuousQuery
from anabranch.api.session import Session
from anabranch.api.together import Together
from anabranch.api.writer import ContinuousQueryWriter
from anabranch.host.spark.handle import ContinuousQueries, QueryHandle

__all__ = ["ContinuousQueries", "ContinuousQuery", "ContinuousQueryWriter", "QueryHandle", "Session", "Together"]
