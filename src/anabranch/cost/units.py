"""The unit costs of this engine on an ordinary machine, for when none have been measured on this one.

`anabranch calibrate` measures them anew; what matters for a choice is their proportion, which varies little.
"""

from __future__ import annotations

from anabranch.stats.view import UnitCosts

ENGINE = UnitCosts(
    insert=4e-8,
    delete=1e-8,
    probe=6e-8,
    compare=1.5e-8,
    match=2e-8,
    match_relation=1.2e-8,
    check=4e-8,
    emit=2e-7,
    call=6e-5,
    code_bytes=8.0,
    index_bytes=48.0,
    joined_relation_bytes=8.0,
    lingers=True,
)
