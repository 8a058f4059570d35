"""The self-routing fabric: rows carry their routes, operators pass them on to one another.

Nothing in this room is built per route. There is one operator module for each relation's base state and one for each
predicate that can be deferred; they stand in an operator index, and place 0 of it is the output. A *ruster* is a set of
rows that take the same route, with a *token*: the stack of operator numbers that are still to come. An operator takes a
ruster, pops the top of its stack and hands what is left to the module of that number. There is no router in between.

Law: whatever the routes, each result is born once, because each route takes every other relation's probe once and each
predicate once. (Nehme et al. 2012, section 5.)
"""
