"""Sinks: one module for each kind, the protocol that all of them keep (`sink`), and the routine that drives them.

`deliver` hands a batch to the sinks of one query or of several. `make` turns a format name and its options into a sink.
"""
