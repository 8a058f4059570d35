"""Sinks: one module for each kind, their common protocol (`sink`), and the routine that drives them (`delivery`).

`deliver` passes a batch to the sinks of one query or of several. `make` turns a format name and its options into a
sink.
"""
