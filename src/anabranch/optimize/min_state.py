"""A binary tree with small intermediate states (min-state, Zhu 2006, ch. 6.1).

Repeatedly joins the two parts whose join has the fewest rows. On a star this is the optimal tree without cross
products, because a join changes the weights of all other edges alike. Two trees are built, one that avoids cross
products if possible and one that allows them, and the one with less total state is returned.
"""

from __future__ import annotations

from anabranch.cost.resources import ResourceModel
from anabranch.optimize.shapes import Orderer, Shape, in_order


def min_state(orderer: Orderer) -> Shape:
    """Returns the tree with the smaller total state of two greedy ones."""
    trees = [_grow(orderer, cross=False), _grow(orderer, cross=True)]
    return min(trees, key=lambda shape: _total_state(orderer.model, shape))


def _grow(orderer: Orderer, *, cross: bool) -> Shape:
    model = orderer.model
    parts = list(orderer.leaves)
    weights = {
        (one, other): _weight(model, one, other, cross=cross) for i, other in enumerate(parts) for one in parts[:i]
    }
    shape: dict[int, tuple[int, ...]] = {}
    while len(parts) > 1:
        one, other = min(weights, key=lambda pair: (weights[pair], pair))
        merged = one | other
        shape[merged] = in_order((one, other))
        parts = [part for part in parts if part not in (one, other)]
        weights = {pair: weight for pair, weight in weights.items() if not (pair[0] | pair[1]) & merged}
        weights.update({(part, merged): _weight(model, part, merged, cross=cross) for part in parts})
        parts.append(merged)
    return shape


def _weight(model: ResourceModel, one: int, other: int, *, cross: bool) -> tuple[bool, float]:
    """Returns whether joining two parts is an unwanted cross product, and the rows of their join."""
    return not cross and not model.connected(one, other), model.rows(one | other)


def _total_state(model: ResourceModel, shape: Shape) -> float:
    return sum(model.state_bytes(joined) for joined in shape if joined != model.estimates.everything)
