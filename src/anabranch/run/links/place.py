"""Opens links by their place: a folder, a Redis server, a site that serves its links, or a directory of such sites."""

from __future__ import annotations

from anabranch.run.links import directory, flight
from anabranch.run.links.folder import FolderLink
from anabranch.run.links.link import LIMIT, Link
from anabranch.run.links.redis import SCHEMES, RedisLink


def open_link(place: str, name: str, limit: int = LIMIT) -> Link:
    """Returns the link of that name at a place; nothing is created before the first batch."""
    if place.startswith(directory.SCHEME):
        place = directory.found(place, name)
    if place.startswith(SCHEMES):
        return RedisLink(place, name, limit)
    if place.startswith(flight.SCHEMES):
        return flight.FlightLink(place, name, limit)
    return FolderLink(place, name, limit)
