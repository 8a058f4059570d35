"""Links: derived streams between operators that run in different applications.

`link` has the protocol and its contract; `folder`, `redis` and `flight` implement it. `shape` selects the rows and
columns for a reader, `outlet` is the producer's side of its links, and `feed` the reader's side. The package is
independent of Spark; `spark.linked` reads links in Spark's workers and `spark.sinks.links` writes them.
"""
