"""The common parts of the closing screens."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def command() -> str:
    """How the command is started from here: by its name, or by its place in an environment that is not active."""
    if shutil.which("anabranch"):
        return "anabranch"
    return os.path.relpath(Path(sys.executable).parent / "anabranch")
