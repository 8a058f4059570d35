"""Changes the plan of a running query: the migration strategies, and the progress of a migration over the slots.

`machine` controls the progress, without I/O: events in, instructions out. `itinerary` divides a change into steps.
`strategies` has one object for each way to change plans.
"""
