"""Changing the plan of a running query: the strategies, and the course of a migration over the slots.

`machine` is the course, without I/O: events in, instructions out. `itinerary` cuts a change into steps. `strategies`
has one object for each way from one plan to another.
"""
