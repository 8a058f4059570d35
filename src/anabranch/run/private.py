"""Folders that other users of the machine can neither read nor change.

`own_folder` is for places that any user can write to, such as shared memory: an entry there under our name may come
from another user. `make_private` is for folders that the user has named: an existing one keeps its permissions.

Limit: a user who may rename entries of the parent folder can still replace ours. Shared memory and temporary folders
have the sticky bit, which prevents that.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from anabranch.errors import UnsafeFolder
from anabranch.run.locations import local_path

PRIVATE = 0o700
_OPEN_TO_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def own_folder(path: Path) -> Path:
    """Creates a folder that only this user can enter, or ensures that the existing one is such a folder.

    Raises
    ------
    UnsafeFolder
        When it is a link or belongs to another user, or when its permissions cannot be restricted.
    """
    try:
        path.mkdir(PRIVATE)
    except FileExistsError:
        pass
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return own_folder(path)
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        # It was removed in between.
        return own_folder(path)
    except OSError as error:
        raise _unsafe(path, _kind(path, error)) from error
    try:
        found = os.fstat(folder)
        if found.st_uid != os.geteuid():
            raise _unsafe(path, f"it belongs to user {found.st_uid}, and this process runs as user {os.geteuid()}")
        if found.st_mode & _OPEN_TO_OTHERS:
            try:
                os.fchmod(folder, PRIVATE)
            except OSError as error:
                raise _unsafe(path, f"other users have access to it: {error}") from error
    finally:
        os.close(folder)
    return path


def make_private(location: str) -> None:
    """Creates a local folder that only this user can enter; does nothing if it exists, or is not on a local disk.

    Ignores errors: the first file written there reports them.
    """
    path = local_path(location)
    if path is not None and not os.path.lexists(path):
        with suppress(OSError):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.mkdir(path, PRIVATE)


def _kind(path: Path, error: OSError) -> str:
    with suppress(OSError):
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode):
            return f"it is a link to '{os.readlink(path)}'"
        if not stat.S_ISDIR(found.st_mode):
            return "it is not a folder"
        return f"it belongs to user {found.st_uid}, and this process runs as user {os.geteuid()}"
    return str(error)


def _unsafe(path: Path, detail: str) -> UnsafeFolder:
    return UnsafeFolder(
        f"folder '{path}' is not safe from other users",
        detail=detail,
        hint="remove it, or let ANABRANCH_HOT_FOLDER name a folder that only you can write to",
    )
