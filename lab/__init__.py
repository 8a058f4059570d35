"""Reproductions of the papers' experiments, one file each.

`registry` is the frame that they share; `papers` holds algorithms and models that only experiments use.
"""
