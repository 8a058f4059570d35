"""Changing the plan of a running query: the course of a migration, and the reasoning about states behind it.

All of it is pure: events in, instructions out, values to values; engines and hosts do what is decided here. `machine`
is the course of a migration over the slots of a query, `itinerary` cuts a change into steps, `spj` matches the states
of plans with selections and projections anywhere, and `costs` has the papers' models of how long a migration takes.
"""
