"""Algorithms and models of the papers that the product does not use.

Experiments reproduce the papers with them, and tests compare the product with them.
"""
