"""Changing the plan of a running query: the course of a migration, and the reasoning about states behind it.

All of it is pure: events in, instructions out, values to values; engines and hosts do what is decided here. `machine`
is the course of a migration over the slots of a query, `itinerary` cuts a change into steps, `recording` matches the
states of a plan that is rewritten step by step, and `costs` has the papers' models of how long a migration takes.
"""
