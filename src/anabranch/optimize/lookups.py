"""One lookup: the predicates that become checkable with it, and the fraction of a state that it passes.

The search for jtrees and the ordering by rank share these functions, and both may be compiled. Numba keeps compiled
code until the file of the compiled function changes, and does not detect changes here. Therefore the compiled files
contain a digest of this file, and a test requires a new digest after every change.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anabranch.cost.resources import ResourceModel

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]


class Units(NamedTuple):
    """The unit costs that vary with the order of probing."""

    probe: float
    compare: float
    match: float
    match_relation: float
    check: float
    call: float
    link: float
    index_bytes: float
    keyed: bool


class Thetas(NamedTuple):
    """The thetas of a query as arrays."""

    relations: Integers
    selectivity: Floats
    is_band: NDArray[np.bool_]
    weight: Floats


def thetas_of(model: ResourceModel) -> Thetas:
    thetas = model.estimates.thetas
    return Thetas(
        np.array([theta.relations for theta in thetas], dtype=np.int64),
        np.array([theta.selectivity for theta in thetas], dtype=np.float64),
        np.array([theta.is_band for theta in thetas], dtype=np.bool_),
        np.array([theta.weight for theta in thetas], dtype=np.float64),
    )


def units_of(model: ResourceModel) -> Units:
    units = model.units
    return Units(
        probe=float(units.probe),
        compare=float(units.compare),
        match=float(units.match),
        match_relation=float(units.match_relation),
        check=float(units.check),
        call=float(model.call),
        link=float(units.link),
        index_bytes=float(units.index_bytes),
        keyed=model.keyed,
    )


def meeting(thetas: Thetas, left: int | np.int64, right: int | np.int64) -> tuple[float, float, float]:
    """Returns the selectivity and weight of the thetas that become checkable, and the selectivity of the first band or
    1.
    """
    share, weight, band, has_band = 1.0, 0.0, 1.0, False
    for theta in range(len(thetas.relations)):
        relations = thetas.relations[theta]
        if relations & (relations - 1) == 0:
            # A deferred filter of one relation.
            meets = left != 0 and right != 0 and relations in (left, right)
        else:
            meets = relations & (left | right) == relations and relations & ~left != 0 and relations & ~right != 0
        if meets:
            share *= thetas.selectivity[theta]
            weight += thetas.weight[theta]
            if not has_band and thetas.is_band[theta]:
                band, has_band = thetas.selectivity[theta], True
    return share, weight, band


def looked_up(keyed: bool, agreeing: float, shares_key: bool, band_selectivity: float) -> float:
    """Returns the fraction of a state that a lookup passes; `band_selectivity` is 1 if no band can be used."""
    if not keyed:
        return 1.0
    return agreeing if shares_key else agreeing * min(1.0, 2 * band_selectivity)
