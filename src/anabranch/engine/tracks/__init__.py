"""Tracks: the plan of one query at work, over base states that the track shares and does not own.

`protocol` says what an engine asks of a track, `plan` runs the joins of one plan, `parallel` two plans during a
migration, `mesh` the routes of a mesh. `make` builds a track for a plan and finds one again from its layout; it is the
one place that knows the kinds.

Law: the combinations that a track yields depend on the rows alone, not on the kind of the track.
"""
