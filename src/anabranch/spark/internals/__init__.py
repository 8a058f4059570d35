"""Calls of Spark that are not part of its public interface.

Invariant: no other package uses a private attribute of PySpark or a class of Spark's JVM. A function here makes one
call and decides nothing. `tests/spark/test_internals.py` makes each call on the installed version of Spark.

Limit: a new version of Spark may lack any of these calls. Each function says what a query does without it.
"""
