"""Decides on the plans of running queries: when to search for a better plan, and whether a change pays.

`steering` is the entry point: a host passes it the reports of every batch and gets the plans of the next one. A
`controller` keeps the frozen `history` of slots that adapt together and asks `advisors` for changes. `change` takes the
slots from plan to plan, `searches` runs long searches outside the batches, and `records` defines the history that users
read. The policies are those of Zhu 2006, section 26.1; the gate's ratio, amount, payback and cool-down prevent
thrashing.

Invariant: this package uses no files, no Spark and no engine. Every decision, including one that keeps the plan, is a
`Decision` with its costs and its reason.
"""
