"""Which partition groups should move between slots so that no slot holds the others back.

A micro-batch ends with its slowest slot. This room turns measured loads into moves: a pure rule, without a clock, a
host or a query. When to ask it, and what becomes of its proposals, is decided by `adapt`.
"""
