"""Searches meshes: learns from a sample which rows of a relation should take which route.

`training` holds the sample and condenses it, `routes` orders the operators for any subset, `search` finds the best
partition of the condensed rows, `induce` learns the decision tree that separates the subsets, `proposal` combines them
and computes the gain, and `drift` detects a mesh that no longer fits. The package reads operator statistics
(`stats.mesh`) and returns plan values (`plan.mesh`, `plan.classifier`); it runs nothing. (Nehme et al. 2012, section
4.)
"""
