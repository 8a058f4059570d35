"""The addresses of links that are kept at their producers' sites: one file for each producer, in a shared folder.

A site writes the address of its link server before it starts an operator. A reader looks up the address of the producer
each time it opens a link, because a restarted site may have another port. The folder has addresses only; rows travel
between the sites.

Limit: if the store of a site is lost, its links are lost; a reader then gets a LinkError, never a gap.
"""

from __future__ import annotations

import json
import uuid
from typing import Any

from anabranch.errors import LinkError
from anabranch.run.locations import UNKNOWN, locate

SCHEME = "sites:"
CONTROL = "control"
"""The producer in the name of a link that is kept at its reader's site."""


def place_of(folder: str) -> str:
    """Returns the place of links whose addresses are in a folder."""
    return f"{SCHEME}{folder}"


def keeper(link: str) -> str:
    """Returns the operator whose site keeps a link: its producer, or the gate that it controls."""
    producer, _, reader = link.partition("--")
    return reader if producer == CONTROL else producer


def announce(place: str, operator: str, address: str) -> None:
    """Writes the address of the site that keeps the links of an operator."""
    files, folder = _folder(place)
    target = f"{folder}/{operator}.json"
    partial = f"{target}.{uuid.uuid4().hex}.partial"
    files.create_dir(folder, recursive=True)
    with files.open_output_stream(partial) as stream:
        stream.write(json.dumps({"address": address}).encode())
    files.move(partial, target)


def address(place: str, operator: str) -> str | None:
    """Returns the address of the site that keeps the links of an operator; None before it has started."""
    files, folder = _folder(place)
    try:
        with files.open_input_stream(f"{folder}/{operator}.json") as stream:
            return str(json.loads(stream.read())["address"])
    except FileNotFoundError:
        return None


def found(place: str, link: str) -> str:
    """Returns the address of a link; raises LinkError if its keeper has never started."""
    known = address(place, keeper(link))
    if known is None:
        raise LinkError(f"link '{link}' is not served yet", hint=f"start the site of operator '{keeper(link)}'")
    return known


def _folder(place: str) -> tuple[Any, str]:
    try:
        files, folder, _ = locate(place.removeprefix(SCHEME))
    except UNKNOWN as error:
        raise LinkError(f"the place '{place}' of links cannot be opened", detail=str(error)) from error
    return files, folder.rstrip("/")
