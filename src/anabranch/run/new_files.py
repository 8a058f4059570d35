"""Finds the new files of streams that are folders, for a host that reads without Spark's sources.

Files are taken in the order of their modification times, and then of their names, as Spark takes them; hidden ones
(`.x`, `_x`) are left out. A file is known by its path, so it must be complete when it appears: write it elsewhere and
rename it. A folder is listed again only if its modification time differs from that of the last listing, or is so recent
that another file may have come since.

Invariant: a file is offered until `took`, and then never again, also if it is gone for a while. Limit: folders of a
local file system, without subfolders; the names of all files that were ever read are in memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from anabranch.errors import CatalogError

_COARSE = 50_000_000
"""Nanoseconds within which a local file system may give two changes of a folder the same time."""


@dataclass
class WatchedFolder:
    """The folder of one stream."""

    path: str
    pattern: str | None = None
    """A pattern that the names of files must match."""
    most: int | None = None
    """The maximum number of files of one batch."""
    latest_first: bool = False
    read: set[str] = field(default_factory=set)
    """The files that have been read."""
    _listed: int | None = None
    """The modification time of the folder at the last listing, if that listing found no new file."""

    def poll(self, *, is_thorough: bool = False) -> list[str]:
        """Returns new files in reading order, at most as many as a batch may have; a thorough poll always lists the
        folder.
        """
        try:
            changed = os.stat(self.path).st_mtime_ns
            if not is_thorough and changed == self._listed:
                return []
            is_old = time.time_ns() - changed > _COARSE
            found = set(self._new())
            if found:
                # A listing may miss a file that is renamed meanwhile, and have a newer one. What is older than a file
                # of the first listing was there before the second.
                newest = max(found)
                found |= {each for each in self._new() if each < newest}
        except OSError as error:
            raise CatalogError(
                f"folder '{self.path}' of a stream cannot be listed",
                detail=str(error),
                hint="the checkpoint remains valid for a restart; restore the folder, and check its permissions",
            ) from error
        self._listed = changed if is_old and not found else None
        ordered = [path for _, path in sorted(found, reverse=self.latest_first)]
        return ordered if self.most is None else ordered[: self.most]

    def took(self, paths: Iterable[str]) -> None:
        """Records that files have been read."""
        self.read.update(paths)

    @property
    def shown(self) -> dict[str, str]:
        """What progress says of the folder: nothing, because its backlog is read with the next batch."""
        return {}

    def _new(self) -> Iterator[tuple[int, str]]:
        """Lists the folder; yields the time of modification and the path of each file that was not read."""
        for name in filter(self._is_wanted, os.listdir(self.path)):
            path = os.path.join(self.path, name)
            if path not in self.read:
                with suppress(FileNotFoundError):
                    status = os.stat(path)
                    if os.path.isdir(path):
                        raise CatalogError(
                            f"folder '{self.path}' of a stream has folder '{name}' in it",
                            detail="in real-time mode, a stream reads the files of one folder without subfolders",
                            hint="run in micro-batches, where Spark also reads subfolders",
                        )
                    yield status.st_mtime_ns, path

    def _is_wanted(self, name: str) -> bool:
        if name.startswith((".", "_")) or name.endswith("._COPYING_"):
            return False
        return self.pattern is None or fnmatchcase(name, self.pattern)
