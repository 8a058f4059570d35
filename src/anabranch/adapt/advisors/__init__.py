"""Advisors: each proposes one kind of change from the history of a query, with its gain and its price.

`plan` proposes join orders and shapes, `routes` proposes meshes, `sharing` proposes joins that several queries compute
together, and `balance` proposes changes of the table of partition groups. The advisors of one query (`advisor`) and of
the table are frozen values: the controller or `table` keeps the history and applies the accepted suggestions.
"""
