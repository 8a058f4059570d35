"""Opens links by their place: a folder, the address of a site that serves its links, or the URL of a Redis server."""

from __future__ import annotations

from anabranch.run.links import flight
from anabranch.run.links.folder import FolderLink
from anabranch.run.links.link import LIMIT, Link
from anabranch.run.links.redis import SCHEMES, RedisLink


def open_link(place: str, name: str, limit: int = LIMIT) -> Link:
    """The link of that name at a place; nothing is made before the first batch."""
    if place.startswith(SCHEMES):
        return RedisLink(place, name, limit)
    if place.startswith(flight.SCHEMES):
        return flight.FlightLink(place, name, limit)
    return FolderLink(place, name, limit)
