"""The command `anabranch site NAME`."""

from __future__ import annotations

from anabranch.sites.command import add_site_arguments as add_arguments

__all__ = ["add_arguments"]
