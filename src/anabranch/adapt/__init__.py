"""Decides on the plans of running queries: when to look for a better one, whether it pays, and who may change a plan.

`steering` is the entrance: a host gives it the reports of every batch and gets the plans of the next. A `controller`
keeps the frozen `history` of slots that adapt together and asks `advisors` for changes; `change` leads slots from plan
to plan; `searches` keeps long searches out of the batches; `records` are what users read.

Law: no files, no Spark, no engine. Every decision, also to keep a plan, is a `Decision` that explains itself. The
policies are those of Zhu 2006, section 26.1; the ratio, the amount, the pay-back and the cool-down of the gate keep
them from thrashing.
"""
