"""Orders probes by rank, in polynomial time, for queries with too many relations for a search.

On an acyclic join graph the order is the best without cross products: the cost of a sequence has the adjacent sequence
interchange property, so ordering by rank (T - 1) / C below each node of the rooted graph is optimal (Ibaraki and Kameda
1984; Krishnamurthy, Boral and Zaniolo 1986; for streams Zhu 2006, ch. 5.1). A cyclic graph is first reduced to its
minimum spanning tree by rows x rows x selectivity, λλσ if all windows are equal. A second tree may also use cross
products (edges of selectivity 1); for each input the cheaper order of the two is kept, so considering cross products
never makes a plan worse. O(n^2) for each input.
"""

from __future__ import annotations

import numpy as np

from anabranch.cost.resources import ResourceModel
from anabranch.optimize.kernels import numbers, order_blocks
from anabranch.optimize.shapes import Blocks, Orderer, Ordering


def ranked_orderer(model: ResourceModel) -> Orderer:
    """Orders any number of relations by rank."""
    given = numbers(model)

    def find(blocks: Blocks) -> Ordering:
        orders, cpu, memory = order_blocks(given, np.array(blocks, dtype=np.int64))
        return Ordering(tuple(map(tuple, orders.tolist())), cpu, memory)

    return Orderer(model, find)
