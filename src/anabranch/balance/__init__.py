"""Decides which partition groups should move between slots so that no slot delays the others.

A micro-batch ends with its slowest slot. This package turns measured loads into moves: a pure rule, without a clock, a
host or a query. `adapt` decides when to apply it and what to do with its proposals.
"""
