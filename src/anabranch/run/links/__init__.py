"""Links: derived streams between operators that run in different applications.

`link` has the protocol and its law, `folder` and `redis` the implementations, `shape` what a reader takes of its
producer's rows, `outlet` the producer's side of all its links, `feed` the reader's side. All of it is independent of
Spark; `spark.linked` reads and writes links in Spark's workers.
"""
