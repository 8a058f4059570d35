"""The inner loops of the search, compiled: the best order of operators, all partitions, and paths in a decision tree.

Sets of operators are bit masks. Tests compare the kernels with plain versions, and the paths of the tree with those of
the trained classifier.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

from anabranch.arrays import Doubles, Integers

Booleans: TypeAlias = NDArray[np.bool_]

_LEAST_GAIN = 1e-12


@njit("float64[:, ::1](float64[:, ::1])", cache=True)
def surviving(selectivity: Doubles) -> Doubles:
    """Rows x sets of operators: how many rows one row becomes after the operators of the set."""
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
    """The cheapest order of all operators for some rows.

    `left[t, s]` is how much of row t is left after the operators of set s, `cost[t, i]` the cost of operator i for it.
    """
    sets, operators = allowed.shape
    # Summed here and not by a matrix product: those start threads, which on a busy machine cost more than the sum.
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


@njit("int64[:, ::1](int64, int64)", cache=True)
def partitions(size: int, count: int) -> Integers:
    """All partitions of a set, one a row: the subset of each element, subsets numbered by their first element."""
    out = np.zeros((count, size), np.int64)
    highest = np.zeros(size, np.int64)
    for place in range(1, count):
        for element in range(size):
            out[place, element] = out[place - 1, element]
        element = size - 1
        while out[place, element] > highest[element - 1]:
            element -= 1
        out[place, element] += 1
        highest[element] = max(highest[element - 1], out[place, element])
        for later in range(element + 1, size):
            out[place, later] = 0
            highest[later] = highest[element]
    return out


@njit("float64(float64)", inline="always", cache=True)
def _times_log(x: float) -> float:
    return x * np.log2(x) if x > 0 else 0.0


@njit("void(int64[:, ::1], boolean[::1], int64[::1], float64[::1], int64)", cache=True)
def order_categories(ranks: Integers, is_category: Booleans, labels: Integers, weights: Doubles, levels: int) -> None:
    """Renumbers categories by the mean label of their rows, so that one cut can separate those of one label.

    With two labels no set of categories that is not such a prefix would be better (Breiman et al. 1984, section 9.4).
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


@njit("int64[::1](int64[:, ::1], int64[::1], float64[::1], int64)", cache=True)
def path_lengths(ranks: Integers, labels: Integers, weights: Doubles, classes: int) -> Integers:
    """The number of tests that each row meets in the tree of greatest information gain over these rows."""
    rows, attributes = ranks.shape
    lengths = np.zeros(rows, np.int64)
    index = np.arange(rows)
    # Each cut takes one open node and makes two, and there are never more leaves than rows.
    starts, stops, depths = np.zeros(rows + 1, np.int64), np.zeros(rows + 1, np.int64), np.zeros(rows + 1, np.int64)
    stops[0] = rows
    waiting = 1 if rows > 0 else 0
    whole, left, right = np.zeros(classes), np.zeros(classes), np.zeros(classes)
    missing = np.zeros(classes)
    keys = np.empty(rows, np.int64)
    while waiting > 0:
        waiting -= 1
        start, stop, depth = starts[waiting], stops[waiting], depths[waiting]
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
                        # Rows of one rank stay together; the low part of the key says which row it is.
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
        middle, last = start, stop - 1
        while middle <= last:
            rank = ranks[index[middle], attribute_taken]
            goes = missing_first if rank < 0 else rank <= rank_taken
            if goes:
                middle += 1
            else:
                index[middle], index[last] = index[last], index[middle]
                last -= 1
        starts[waiting], stops[waiting], depths[waiting] = start, middle, depth + 1
        starts[waiting + 1], stops[waiting + 1], depths[waiting + 1] = middle, stop, depth + 1
        waiting += 2
    return lengths
