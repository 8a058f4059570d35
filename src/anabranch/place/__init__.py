"""Planning over a network of sites: join order, placement and operator reuse in one decision.

Seshadri, Kumar, Cooper and Liu, "A Distributed Stream Query Optimization Framework through Integrated Planning and
Deployment" (IEEE TPDS 2009). The result is a value, the `Deployment`; this package does not run it.
"""
