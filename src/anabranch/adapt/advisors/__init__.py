"""Advisors: each proposes one kind of change from the history of a query, with its gain and its price.

`plan` proposes join orders and shapes, `routes` proposes meshes, `sharing` proposes joins that several queries compute
together. An advisor of one query (`advisor`) is a frozen value: the controller keeps the history and applies the
accepted suggestions.
"""
