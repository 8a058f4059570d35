"""Query planning over a network of sites: decides join order, placement and operator reuse together.

Seshadri, Kumar, Cooper and Liu, "A Distributed Stream Query Optimization Framework through Integrated Planning and
Deployment" (IEEE TPDS 2009). The result is a value, the `Deployment`; this package does not run it.

Limit: needs the extra `sites`; importing the package without it raises a HostError.
"""

from importlib.util import find_spec

from anabranch.errors import HostError, installation

_missing = [name for name in ("networkx", "scipy", "sklearn", "threadpoolctl", "matplotlib") if find_spec(name) is None]
if _missing:
    raise HostError(
        f"planning over sites needs packages that are not installed: {', '.join(_missing)}",
        hint=installation("sites"),
    )
