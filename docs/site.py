"""Hooks of mkdocs: what pages link to outside of docs/ becomes part of the site.

A link such as `../examples/orders.yaml` works in the repository. On the site the file is copied below `files/`, and the
link leads there.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Adds the files outside of docs/ that pages link to."""
    for page in list(files.documentation_pages()):
        source = ROOT / "docs" / page.src_uri
        for target, _ in LINK.findall(source.read_text()):
            path = _outside(source, target)
            if path is not None and files.get_file_from_path(_name(path)) is None:
                files.append(File.generated(config, _name(path), content=path.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Leads links outside of docs/ to the copies."""
    source = ROOT / "docs" / page.file.src_uri

    def other(found: re.Match[str]) -> str:
        path = _outside(source, found.group(1))
        if path is None:
            return found.group(0)
        up = os.path.relpath(_name(path), os.path.dirname(page.file.src_uri) or ".")
        return f"]({up}{'' if path.suffix != '.md' else found.group(2) or ''})"

    return LINK.sub(other, markdown)


def _outside(source: Path, target: str) -> Path | None:
    """The file that a link leads to, if it is one outside of docs/."""
    path = (source.parent / target).resolve()
    if path.is_relative_to(ROOT / "docs") or not path.is_relative_to(ROOT):
        return None
    if path.is_dir():
        path = path / "README.md"
    return path if path.is_file() else None


def _name(path: Path) -> str:
    """The name of a copy; Markdown is shown as it is written."""
    relative = path.relative_to(ROOT).as_posix()
    return f"files/{relative}.txt" if path.suffix in {".md", ".py", ".yaml"} else f"files/{relative}"
