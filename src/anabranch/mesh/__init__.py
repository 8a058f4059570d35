"""Searches meshes: learns from a sample which rows of a relation should take which route.

The way from rows to routes: `training` holds the sample and condenses it, `routes` orders the operators for any subset,
`search` finds the best partition of the condensed rows, `induce` learns the decision tree that separates the subsets,
`proposal` puts them together and computes the gain, and `drift` detects a mesh that no longer fits. The room reads
statistics of operators (`stats.mesh`) and returns plan values (`plan.mesh`, `plan.classifier`); it runs nothing. (Nehme
et al. 2012, section 4.)
"""
