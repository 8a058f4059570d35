"""The self-routing fabric: rows carry their routes, and operators forward them to one another.

Nothing in this package is built per route. There is one operator module for each relation's base state and one for each
deferrable predicate; they form an operator index, whose position 0 is the output. A *row group* (ruster in the paper)
is a set of rows on the same route, with a *token*: the stack of operator numbers still to visit. An operator processes
a row group, pops the top of its stack and forwards the remaining rows to the module of that number. There is no router
in between.

Invariant: whatever the routes, each result is produced once, because each route visits every other relation's probe
once and each predicate once. (Nehme et al. 2012, section 5.)
"""
