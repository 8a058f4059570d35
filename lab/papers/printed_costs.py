"""The unit costs that the papers on qualified plans print.

The papers contradict themselves in two places; this is the reading used here. (1) The rate of a merged vertex is
printed as λλσ in one section and λλσW in another; Eq. 4 only adds up with 2λλσW, the true birth rate, so that is used.
(2) C_j multiplies λ|S|σ, the pairs that match, yet the dissertation speaks of a nested-loop join, which pays for each
pair it looks at. `HASHED` is the first, as printed (match = C_j); `NESTED` the second (compare = C_j, nothing looked up
by key). Only `NESTED` makes the mjoin of experiment set 2 unqualified as reported, so the four-set experiment uses it.
"""

from __future__ import annotations

from anabranch.cost.units import UnitCosts

HASHED = UnitCosts(insert=2e-7, delete=2e-7, probe=0.0, compare=0.0, match=2.2e-6)
NESTED = UnitCosts(insert=2e-7, delete=2e-7, probe=0.0, compare=2.2e-6, match=0.0)
