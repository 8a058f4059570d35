"""Learns the classifier: grows an entropy decision tree and turns it into a plan value.

Labels are route numbers. The tree grows until its leaves are pure or no attribute is left to split by; an impure leaf
takes the route with the most weight. Numbers are split halfway between adjacent values of the sample. Categories are
ordered by their mean label, so that one test can list several. Rows unlike any in the sample follow the majority: NULLs
go where the sample's NULLs went, or else to the heavier branch. A test lists the categories of its lighter branch, so
that an unseen category goes to the heavier one; if only frequent texts are categories, it lists those of the branch
without the rest. (Nehme et al. 2012, section 4.4.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from anabranch.lang.arrays import Doubles, Integers
from anabranch.mesh.kernels import decision_tree, order_categories
from anabranch.mesh.training import Attribute, TrainingSet
from anabranch.plan.classes import REST
from anabranch.plan.classifier import Assign, CategoryTest, Classifier, NumberTest
from anabranch.plan.classify import assign_routes


def induce(training: TrainingSet, labels: Integers) -> Classifier:
    """Returns the tree that separates the labels of the rows as well as their attributes allow."""
    if training.rows == 0:
        raise ValueError("a classifier cannot be learnt from no rows")
    if not training.attributes or (labels == labels[0]).all():
        return Assign(_majority(labels, training.weights))
    ranks = ordered_ranks(training, labels)
    nodes, _ = decision_tree(ranks, labels, training.weights, int(labels.max()) + 1)
    return _Reading(training, ranks, labels, nodes).node(0, np.arange(training.rows))


def ordered_ranks(training: TrainingSet, labels: Integers) -> Integers:
    """Returns rows x attributes: ranks of values, categories ordered by their mean label; -1 for NULL."""
    ranks = np.ascontiguousarray(np.stack([attribute.ranks for attribute in training.attributes], axis=1))
    is_category = np.array([attribute.categories is not None for attribute in training.attributes])
    if is_category.any():
        levels = max(attribute.levels.size for attribute in training.attributes)
        order_categories(ranks, is_category, labels, training.weights, levels)
    return ranks


def cut_back(
    tree: Classifier, sample: TrainingSet, paid: Doubles, test: float, rows: Integers | None = None
) -> tuple[Classifier, float]:
    """Prunes tests that cost their rows more than they save; returns the tree and the cost of its rows and tests.

    `paid` is rows x routes: the cost that each row adds to the mesh on each route; a test adds `test` x share.
    """
    rows = np.arange(sample.rows) if rows is None else rows
    if isinstance(tree, Assign):
        return tree, float(paid[rows, tree.route].sum())
    asked = replace(tree, first=Assign(0), second=Assign(1))
    goes = assign_routes(asked, {tree.attribute: sample.columns[tree.attribute].take(rows)}, rows.size)
    first, first_cost = cut_back(tree.first, sample, paid, test, rows[goes == 0])
    second, second_cost = cut_back(tree.second, sample, paid, test, rows[goes == 1])
    tested = first_cost + second_cost + test * float(sample.shares[rows].sum())
    alone = paid[rows].sum(axis=0)
    route = int(alone.argmin())
    if alone[route] <= tested or first == second:
        return Assign(route), float(alone[route])
    return replace(tree, first=first, second=second), tested


@dataclass(frozen=True, eq=False)
class _Reading:
    """Converts the nodes of a grown tree to a tree of tests, and passes the rows down to them."""

    training: TrainingSet
    ranks: Integers
    labels: Integers
    nodes: Integers

    def node(self, place: int, rows: Integers) -> Classifier:
        position, cut, missing_left, left, right = self.nodes[place].tolist()
        if position < 0:
            return Assign(_majority(self.labels[rows], self.training.weights[rows]))
        ranks = self.ranks[rows, position]
        null_first = bool(missing_left)
        goes_left = np.where(ranks < 0, null_first, ranks <= cut)
        low, high = rows[goes_left], rows[~goes_left]
        weights = self.training.weights
        if not (ranks < 0).any():
            null_first = bool(weights[low].sum() >= weights[high].sum())
        first, second = self.node(left, low), self.node(right, high)
        if first == second:
            return first
        attribute = self.training.attributes[position]
        if attribute.categories is None:
            return NumberTest(attribute.name, self._threshold(attribute, ranks, cut), first, second, null_first)
        known_low, known_high = self._categories(attribute, low), self._categories(attribute, high)
        lists_low = bool(weights[low].sum() <= weights[high].sum())
        if attribute.rest is not None and REST in (*known_low, *known_high):
            lists_low = REST in known_high
        if lists_low:
            return CategoryTest(attribute.name, known_low, first, second, null_first)
        return CategoryTest(attribute.name, known_high, second, first, not null_first)

    @staticmethod
    def _threshold(attribute: Attribute, ranks: Integers, cut: int) -> float:
        """Returns the midpoint of the two values of these rows that are adjacent to the cut."""
        below, above = ranks[(ranks >= 0) & (ranks <= cut)], ranks[ranks > cut]
        if above.size == 0:
            return np.inf
        low, high = attribute.levels[below.max()], attribute.levels[above.min()]
        middle = float(low + (high - low) / 2)
        # Adjacent doubles have no midpoint: rounding must not move the cut up to the higher one.
        return middle if middle < high else float(low)

    def _categories(self, attribute: Attribute, rows: Integers) -> tuple[str, ...]:
        assert attribute.categories is not None
        values = attribute.values[rows]
        return tuple(attribute.categories[int(value)] for value in np.unique(values[~np.isnan(values)]))


def _majority(labels: Integers, weights: Doubles) -> int:
    return int(np.bincount(labels, weights).argmax())
