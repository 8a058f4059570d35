"""The unit costs of the engine on an ordinary machine.

A choice depends on their proportions, which vary little between machines; `anabranch calibrate` measures those of one
machine. The sizes are not measured: they follow from the layout of the engine's states.
"""

from __future__ import annotations

from typing import TypedDict

from anabranch.stats.view import UnitCosts


class Sizes(TypedDict):
    """The part of unit costs that is about memory."""

    code_bytes: float
    index_bytes: float
    joined_relation_bytes: float
    lingers: bool


ENGINE_SIZES = Sizes(code_bytes=8.0, index_bytes=28.0, joined_relation_bytes=8.0, lingers=True)
ENGINE = UnitCosts(
    insert=5e-8,
    delete=0.0,
    probe=3e-8,
    compare=8e-9,
    match=2e-8,
    match_relation=8e-9,
    link=5e-8,
    insert_joined=1e-7,
    check=4e-8,
    emit=2e-8,
    group=2e-7,
    call=6e-5,
    **ENGINE_SIZES,
)
