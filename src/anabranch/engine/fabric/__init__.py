"""The self-routing fabric: rows are divided by route, and the operators of a route forward them to one another.

A *row group* (ruster in the paper) is a set of rows on the same route. Each operator of a route is a *hop*: it
processes a row group and forwards the remaining rows to the next hop, block by block. There is no router in between,
and hops hold no rows, so routes, meshes and queries share the base states.

Invariant: whatever the routes, each result is produced once, because each route visits every other relation's probe
once and each predicate once. (Nehme et al. 2012, section 5.)
"""
