"""Migration strategies: each is one object that checks, prices and begins a change of plan.

`strategy` is the protocol, `pricing` the costs that several strategies share, `registry` finds a strategy by name. To
add a strategy, write a module with its object here and add the object to `registry`.
"""
