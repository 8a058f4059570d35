"""Compiled kernels of the mesh search: the best order of operators, and growing of trees.

Sets of operators are bit masks. Attributes are ranks of values, negative for NULL. Invariant: each kernel returns the
same as its plain version in the tests, and the trees are as good as those of scikit-learn.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

from anabranch.lang.arrays import Doubles, Integers

Booleans: TypeAlias = NDArray[np.bool_]

_LEAST_GAIN = 1e-12


@njit("float64[:, ::1](float64[:, ::1])", cache=True)
def surviving(selectivity: Doubles) -> Doubles:
    """Returns rows x sets of operators: the number of rows that one row becomes after the operators of the set."""
    rows, operators = selectivity.shape
    out = np.ones((rows, 1 << operators))
    for row in range(rows):
        for passed in range(1, 1 << operators):
            lowest = 0
            while passed >> lowest & 1 == 0:
                lowest += 1
            out[row, passed] = out[row, passed & (passed - 1)] * selectivity[row, lowest]
    return out


@njit("Tuple((int64[::1], float64))(float64[:, ::1], float64[:, ::1], int64[::1], boolean[:, ::1])", cache=True)
def best_order(left: Doubles, cost: Doubles, rows: Integers, allowed: Booleans) -> tuple[Integers, float]:
    """Returns the cheapest order of all operators for some rows, and its cost.

    `left[t, s]` is the weight of row t after the operators of set s, `cost[t, i]` the cost of operator i for it.
    """
    sets, operators = allowed.shape
    # Not a matrix product: that starts threads, which cost more than the sum on a busy machine.
    work = np.zeros((sets, operators))
    for row in rows:
        for done in range(sets):
            for operator in range(operators):
                work[done, operator] += left[row, done] * cost[row, operator]
    least = np.full(sets, np.inf)
    chosen = np.full(sets, -1, np.int64)
    least[sets - 1] = 0.0
    for done in range(sets - 2, -1, -1):
        for operator in range(operators):
            if done >> operator & 1 == 0 and allowed[done, operator]:
                cost = work[done, operator] + least[done | 1 << operator]
                if cost < least[done]:
                    least[done] = cost
                    chosen[done] = operator
    order = np.empty(operators, np.int64)
    done = 0
    for step in range(operators):
        order[step] = chosen[done]
        done |= 1 << chosen[done]
    return order, least[0]


@njit("float64(float64)", inline="always", cache=True)
def _times_log(x: float) -> float:
    return x * np.log2(x) if x > 0 else 0.0


@njit("void(int64[:, ::1], boolean[::1], int64[::1], float64[::1], int64)", cache=True)
def order_categories(ranks: Integers, is_category: Booleans, labels: Integers, weights: Doubles, levels: int) -> None:
    """Renumbers categories by the mean label of their rows, so that one cut can separate those of one label.

    With two labels, one of the cuts in this order is the best of all sets (Breiman et al. 1984, section 9.4).
    """
    for attribute in range(ranks.shape[1]):
        if not is_category[attribute]:
            continue
        total, mass = np.zeros(levels), np.zeros(levels)
        for row in range(ranks.shape[0]):
            rank = ranks[row, attribute]
            if rank >= 0:
                total[rank] += weights[row] * labels[row]
                mass[rank] += weights[row]
        for rank in range(levels):
            total[rank] = total[rank] / mass[rank] if mass[rank] > 0 else np.inf
        order = np.argsort(total, kind="mergesort")
        places = np.empty(levels, np.int64)
        for place in range(levels):
            places[order[place]] = place
        for row in range(ranks.shape[0]):
            if ranks[row, attribute] >= 0:
                ranks[row, attribute] = places[ranks[row, attribute]]


@njit("int64(int64[::1], int64, int64, int64[:, ::1], int64, int64, boolean)", cache=True)
def _divide(
    index: Integers, start: int, stop: int, ranks: Integers, attribute: int, last_rank: int, missing_first: bool
) -> int:
    """Moves the rows of a node that pass a test before the others; returns the position of the first that fails."""
    middle, last = start, stop - 1
    while middle <= last:
        rank = ranks[index[middle], attribute]
        goes = missing_first if rank < 0 else rank <= last_rank
        if goes:
            middle += 1
        else:
            index[middle], index[last] = index[last], index[middle]
            last -= 1
    return middle


@njit("Tuple((int64[:, ::1], int64[::1]))(int64[:, ::1], int64[::1], float64[::1], int64)", cache=True)
def decision_tree(ranks: Integers, labels: Integers, weights: Doubles, classes: int) -> tuple[Integers, Integers]:
    """Returns a tree grown by information gain, and the number of tests that each row passes in it.

    A row of the first array is a node: the tested attribute (-1 in a leaf), the last rank that goes to the first child,
    whether NULL goes there, and the positions of both children. The root is the first row.
    """
    rows, attributes = ranks.shape
    # There are never more leaves than rows, and one test fewer than leaves.
    nodes = np.full((2 * rows, 5), -1, np.int64)
    made = 1
    lengths = np.zeros(rows, np.int64)
    index = np.arange(rows)
    starts, stops, depths = np.zeros(rows + 1, np.int64), np.zeros(rows + 1, np.int64), np.zeros(rows + 1, np.int64)
    places = np.zeros(rows + 1, np.int64)
    stops[0] = rows
    waiting = 1 if rows > 0 else 0
    whole, left, right = np.zeros(classes), np.zeros(classes), np.zeros(classes)
    missing = np.zeros(classes)
    keys = np.empty(rows, np.int64)
    while waiting > 0:
        waiting -= 1
        start, stop, depth, node = starts[waiting], stops[waiting], depths[waiting], places[waiting]
        whole[:] = 0.0
        for place in range(start, stop):
            whole[labels[index[place]]] += weights[index[place]]
        least, attribute_taken, rank_taken, missing_first = np.inf, -1, -1, False
        kinds, mass = 0, 0.0
        for label in range(classes):
            kinds += whole[label] > 0
            mass += whole[label]
        if kinds > 1:
            for attribute in range(attributes):
                missing[:] = 0.0
                known, unknown = 0, 0
                for place in range(start, stop):
                    row = index[place]
                    if ranks[row, attribute] < 0:
                        missing[labels[row]] += weights[row]
                        unknown += 1
                    else:
                        # Sorting these keys sorts by rank; the low part is the row.
                        keys[known] = ranks[row, attribute] * rows + row
                        known += 1
                if known == 0:
                    continue
                order = np.sort(keys[:known])
                for goes_first in range(2 if unknown > 0 else 1):
                    left_mass, left_sum, right_sum = 0.0, 0.0, 0.0
                    for label in range(classes):
                        left[label] = missing[label] if goes_first else 0.0
                        right[label] = whole[label] - left[label]
                        left_mass += left[label]
                        left_sum += _times_log(left[label])
                        right_sum += _times_log(right[label])
                    for place in range(known):
                        row = order[place] % rows
                        label, weight = labels[row], weights[row]
                        left_sum -= _times_log(left[label])
                        right_sum -= _times_log(right[label])
                        left[label] += weight
                        right[label] = max(0.0, right[label] - weight)
                        left_mass += weight
                        left_sum += _times_log(left[label])
                        right_sum += _times_log(right[label])
                        rank = order[place] // rows
                        if place + 1 < known:
                            if order[place + 1] // rows == rank:
                                continue
                        elif goes_first or unknown == 0:
                            continue
                        disorder = _times_log(left_mass) - left_sum + _times_log(mass - left_mass) - right_sum
                        if disorder < least - _LEAST_GAIN * mass:
                            least, attribute_taken, rank_taken = disorder, attribute, rank
                            missing_first = goes_first == 1
        if attribute_taken < 0:
            for place in range(start, stop):
                lengths[index[place]] = depth
            continue
        nodes[node, 0], nodes[node, 1], nodes[node, 2] = attribute_taken, rank_taken, missing_first
        nodes[node, 3], nodes[node, 4] = made, made + 1
        middle = _divide(index, start, stop, ranks, attribute_taken, rank_taken, missing_first)
        starts[waiting], stops[waiting], depths[waiting], places[waiting] = start, middle, depth + 1, made
        waiting += 1
        starts[waiting], stops[waiting], depths[waiting], places[waiting] = middle, stop, depth + 1, made + 1
        waiting += 1
        made += 2
    return nodes[:made], lengths


@njit(
    "Tuple((float64, int64, int64, boolean))"
    "(int64[:, ::1], float64[:, ::1], float64[::1], int64[::1], int64, int64, int64)",
    cache=True,
)
def _explaining_cut(
    ranks: Integers, targets: Doubles, weights: Doubles, index: Integers, start: int, stop: int, least_rows: int
) -> tuple[float, int, int, bool]:
    """Returns the cut of a node that reduces its squared error most: reduction, attribute, last rank, place of NULL.

    The reduction is -1 if the targets agree or no cut leaves enough rows on both sides.
    """
    rows, outputs = ranks.shape[0], targets.shape[1]
    most, attribute_taken, rank_taken, missing_taken = -1.0, -1, -1, False
    whole, left, missing = np.zeros(outputs), np.zeros(outputs), np.zeros(outputs)
    mass, squares = 0.0, 0.0
    for place in range(start, stop):
        row = index[place]
        mass += weights[row]
        for output in range(outputs):
            whole[output] += weights[row] * targets[row, output]
            squares += weights[row] * targets[row, output] ** 2
    alone = 0.0
    for output in range(outputs):
        alone += whole[output] ** 2 / mass
    if squares - alone <= _LEAST_GAIN * mass:
        return most, attribute_taken, rank_taken, missing_taken
    keys = np.empty(stop - start, np.int64)
    for attribute in range(ranks.shape[1]):
        missing[:] = 0.0
        missing_mass, known, unknown = 0.0, 0, 0
        for place in range(start, stop):
            row = index[place]
            if ranks[row, attribute] < 0:
                missing_mass += weights[row]
                unknown += 1
                for output in range(outputs):
                    missing[output] += weights[row] * targets[row, output]
            else:
                keys[known] = ranks[row, attribute] * rows + row
                known += 1
        order = np.sort(keys[:known])
        for goes_first in range(2 if unknown > 0 else 1):
            for output in range(outputs):
                left[output] = missing[output] if goes_first else 0.0
            left_mass = missing_mass if goes_first else 0.0
            left_rows = unknown if goes_first else 0
            for place in range(known):
                row, rank = order[place] % rows, order[place] // rows
                left_mass += weights[row]
                left_rows += 1
                for output in range(outputs):
                    left[output] += weights[row] * targets[row, output]
                if place + 1 < known and order[place + 1] // rows == rank:
                    continue
                if left_rows < least_rows or stop - start - left_rows < least_rows:
                    continue
                apart = 0.0
                for output in range(outputs):
                    apart += left[output] ** 2 / left_mass + (whole[output] - left[output]) ** 2 / (mass - left_mass)
                gain = max(0.0, apart - alone)
                if gain > most + _LEAST_GAIN * mass:
                    most, attribute_taken, rank_taken, missing_taken = gain, attribute, rank, goes_first == 1
    return most, attribute_taken, rank_taken, missing_taken


@njit("int64[::1](int64[:, ::1], float64[:, ::1], float64[::1], int64, int64)", cache=True)
def regression_cells(ranks: Integers, targets: Doubles, weights: Doubles, size: int, least_rows: int) -> Integers:
    """Returns the leaf of each row in a regression tree of at most `size` leaves of at least `least_rows` rows each.

    The leaf whose cut reduces the squared error most is divided first.
    """
    rows = ranks.shape[0]
    index, cells = np.arange(rows), np.zeros(rows, np.int64)
    starts, stops = np.zeros(size, np.int64), np.zeros(size, np.int64)
    gains, cuts, missing_first = np.full(size, np.nan), np.zeros((size, 2), np.int64), np.zeros(size, np.bool_)
    stops[0] = rows
    leaves = 1
    while leaves < size:
        for leaf in range(leaves):
            if np.isnan(gains[leaf]):
                gains[leaf], cuts[leaf, 0], cuts[leaf, 1], missing_first[leaf] = _explaining_cut(
                    ranks, targets, weights, index, starts[leaf], stops[leaf], least_rows
                )
        best = int(gains[:leaves].argmax())
        if gains[best] < 0:
            break
        middle = _divide(index, starts[best], stops[best], ranks, cuts[best, 0], cuts[best, 1], missing_first[best])
        starts[leaves], stops[leaves], stops[best] = middle, stops[best], middle
        gains[best] = np.nan
        leaves += 1
    for leaf in range(leaves):
        for place in range(starts[leaf], stops[leaf]):
            cells[index[place]] = leaf
    return cells
