"""A site that kills itself, once at each phase of a batch: run by the test as a process of its own.

    crash_site.py NAME ROOT MARKS PHASE …

A file in MARKS says that the site has died at a phase; the site that is started next dies at the phase after it.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from anabranch.sites.root import Root
from anabranch.sites.site import SITE_SETTINGS, Site
from anabranch.spark.session import open_session


def main(name: str, root: str, marks: str, *phases: str) -> None:
    folder = Path(marks)
    folder.mkdir(exist_ok=True)
    left = [phase for phase in phases if not (folder / phase).exists()]

    def announce(operator: str, phase: str, batch: int) -> None:
        # Not at the very first batch: something must have been committed that a restart could repeat.
        if left and phase == left[0] and batch >= 1 and operator.startswith("gate"):
            (folder / phase).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    ended = False

    def end(*_: object) -> None:
        nonlocal ended
        ended = True

    signal.signal(signal.SIGTERM, end)
    spark = open_session("local[1]", {"spark.driver.memory": "512m", **SITE_SETTINGS})
    try:
        Site(Root(root), name, lambda: spark, announce).run(lambda: ended)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
