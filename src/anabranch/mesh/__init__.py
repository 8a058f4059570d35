"""Searching a mesh: which rows of a relation should take which route, learnt from a sample.

The way from rows to routes: `training` holds the sample and condenses it, `routes` orders the operators for any subset,
`search` looks for the best partition of the condensed rows, `induce` learns the decision tree that tells the subsets
apart, `proposal` puts them together and says what is gained; `drift` tells when the mesh no longer fits. The room reads
what operators do to rows as data (`stats.mesh`) and hands over plan values (`plan.mesh`, `plan.classifier`); it
runs nothing. (Nehme et al. 2012, section 4.)
"""
