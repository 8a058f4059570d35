"""The examples in docstrings: what they show is what comes out."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import anabranch

ROOT = Path(anabranch.__file__).parent
EXAMPLES = sorted(path for path in ROOT.rglob("*.py") if ">>> " in path.read_text())
LINES = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_examples_of_a_module(path: Path) -> None:
    name = ".".join(["anabranch", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=LINES)
    assert not failed
