"""Pages name only modules, tests, errors and links that exist."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from anabranch import errors
from anabranch.cli import main as cli
from anabranch.spec.model import QuerySpec, Spec

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


@pytest.mark.parametrize("page", ["invariants", "bad-input"])
def test_every_test_that_a_page_names_exists(page: str) -> None:
    named = re.findall(r"`([\w/]+)::(test_\w+)`", (ROOT / "docs" / "internals" / f"{page}.md").read_text())
    missing = [f"{file}::{name}" for file, name in named if f"def {name}(" not in _text(ROOT / "tests" / f"{file}.py")]
    assert named
    assert not missing


def test_every_module_that_a_page_names_exists() -> None:
    source = ROOT / "src" / "anabranch"
    packages = "|".join(each.name for each in source.iterdir() if each.is_dir())
    missing = [
        f"{page.relative_to(ROOT)}: {module}"
        for page in PAGES
        for module in re.findall(rf"`((?:{packages})(?:/\w+)+)(?:\.\w+)*`", page.read_text())
        if not any((folder / f"{module}{end}").exists() for folder in (source, ROOT / "tests") for end in ("", ".py"))
    ]
    assert not missing


def test_every_error_has_its_row() -> None:
    kinds = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
    rows = re.findall(r"^\|[^|]+\| `(\w+)`:", (ROOT / "docs/internals/bad-input.md").read_text(), re.MULTILINE)
    assert set(rows) == kinds - {"AnabranchError", "CqlError"}


def test_links_between_pages_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)]+)\)", page.read_text())
        if "://" not in target and not _leads_somewhere(page, target)
    ]
    assert not broken


def test_the_spec_that_has_every_entry_can_be_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/spec.md").read_text(), re.DOTALL)
    (tmp_path / "query.yaml").write_text(written[0])
    assert cli.main(["explain", str(tmp_path / "query.yaml")]) == 0
    assert "plan (o c)" in capsys.readouterr().out
    named_otherwise = {"plan_options": "plan", "switches": "switch"}
    # The entry 'queries' stands in place of 'query' and 'sink'; 'share' and 'limits' beside it are for several queries.
    names = {field.name for kind in (Spec, QuerySpec) for field in fields(kind)} - {"queries", "together"}
    assert {named_otherwise.get(name, name) for name in names} <= yaml.safe_load(written[0]).keys()


def test_the_worked_example_prints_what_its_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/internals/mesh.md").read_text(), re.DOTALL)
    code = "".join(blocks)
    exec(compile(code, "mesh.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == re.findall(r"^# (.*)$", code, re.MULTILINE)


def _leads_somewhere(page: Path, target: str) -> bool:
    """Whether the page and, after a #, its heading exist; headings are named as GitHub does."""
    path, _, heading = target.partition("#")
    other = page.parent / path if path else page
    if not heading or not other.is_file():
        return other.exists()
    titles = re.findall(r"^#+ (.*)$", other.read_text(), re.MULTILINE)
    return heading in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""
