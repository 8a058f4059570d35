"""Tracks: the running plan of one query, over base states that the track shares and does not own.

`protocol` defines the interface to the engine, `plan` runs the joins of one plan, `parallel` two plans during a
migration, `mesh` the routes of a mesh. `make` builds a track for a plan and reopens one from its layout; only `make`
depends on the kinds of tracks.

Invariant: the combinations that a track yields depend only on the rows, not on the kind of track.
"""
