"""The pages keep up with the house: what they name exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


def test_every_test_that_the_invariants_name_exists() -> None:
    named = re.findall(r"`([\w/]+)::(test_\w+)`", (ROOT / "docs/invariants.md").read_text())
    missing = [f"{file}::{name}" for file, name in named if f"def {name}(" not in _text(ROOT / "tests" / f"{file}.py")]
    assert named
    assert not missing


def test_links_between_pages_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert not broken


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""
