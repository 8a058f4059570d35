"""The page of all settings lists what the code reads, and nothing else."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from anabranch.settings import entries
from anabranch.settings.entries import Entry
from anabranch.settings.removed import REMOVED
from anabranch.spec import explain_command, run_command
from anabranch.spec.file import parse

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "settings.md").read_text()
MOST = 90
"""A bound on the entries of a spec."""
MORE = """
streams: {s: {format: rate, event_time: ts, schema: "ts timestamp, k bigint"}}
checkpoint: c
share: auto
limits: {cpu: 1.0}
slots: {least: 1, most: 2}
moves: [{at_batch: 1, split: 7, over: 2}]
queries:
  one: {query: "SELECT a.k AS k FROM s [RANGE 1 SECONDS] AS a", sink: {format: noop}, adapt: {policy: periodic}}
  two: {query: "SELECT a.k AS k FROM s [RANGE 1 SECONDS] AS a", sink: {format: noop}, adapt: {policy: data-driven}}
"""
NAMED = re.compile(r"^(streams|tables|functions)\.\w+")


def _section(title: str) -> set[str]:
    """The names in the first column of a section's table."""
    text = PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    cells = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def _normal(path: str) -> str:
    """The path of an entry as the page writes it."""
    path = re.sub(r"^queries\.\w+\.?", "", path)
    path = re.sub(r"^late(?=\.|$)", "sink", path)
    path = re.sub(r"\.\d+", "[]", path)
    return NAMED.sub(r"\1.NAME", path)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The entries that the reader of specs knows, without groups that cannot have a value themselves."""
    known: set[str] = set()
    mapping = Entry.mapping

    def recorded(self: Entry, names: str, required: Mapping[str, str] = entries.NOTHING) -> dict[str, Entry]:
        known.update(_normal(self.inside(name)) for name in names.split())
        return mapping(self, names, required)

    monkeypatch.setattr(Entry, "mapping", recorded)
    written = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/spec.md").read_text(), re.DOTALL)[0]
    for text in (written, MORE):
        parse(text, folder=ROOT)
    groups = {name.split(".")[0].removesuffix("[]") for name in known if "." in name} - {"slots", "adapt", "balance"}
    return known - groups - {"late", "queries"}


def test_the_page_has_every_entry_of_a_spec(read: set[str]) -> None:
    assert _section("Entries of a spec") == read
    assert len(read) <= MOST


def test_the_page_has_every_option() -> None:
    parser = argparse.ArgumentParser()
    subparsers = parser.add_subparsers()
    run_command.add_arguments(subparsers)
    explain_command.add_arguments(subparsers)
    known = {
        option
        for name in ("run", "explain")
        for action in subparsers.choices[name]._actions
        for option in action.option_strings
        if option.startswith("--") and option != "--help"
    }
    assert _section("Options of `anabranch run` and `anabranch explain`") == known


def test_the_page_has_every_variable_and_session_setting() -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    assert _section("Environment variables") == set(re.findall(r"\bANABRANCH_[A-Z_]+\b", sources))
    assert _section("Settings of the Spark session") == set(re.findall(r"spark\.anabranch\.\w+", sources))


def test_no_removed_setting_is_read(read: set[str]) -> None:
    assert not REMOVED.keys() & read
