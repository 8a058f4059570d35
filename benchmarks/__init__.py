"""Benchmarks: Anabranch side by side with what one would use instead, each figure a ratio measured in one run.

    python -m benchmarks --list
    python -m benchmarks spark-w3 --runs 3
    python -m benchmarks --quick

The law of this package: both sides of a ratio read the same files, write the same kind of sink, are measured by the
same supervisor, and have their answer checked against a third system before any number is written down. Its limit: one
machine and `local[2]`, so it says nothing of networks or clusters.
"""
