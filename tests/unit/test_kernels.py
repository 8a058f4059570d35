"""Compiled functions that are kept on disk are never older than what was compiled into them.

numba compiles a function again when its own file changes, and only then: a changed function of another file, which was
compiled into it, went unnoticed. So a file of kernels names the files that they are built on, each with its digest.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType

import pytest
from numba.core.dispatcher import Dispatcher

from anabranch.optimize import compiled

PACKAGE = Path(__file__).parents[2] / "src" / "anabranch"
COMPILED_ELSEWHERE = [PACKAGE / "optimize" / name for name in ("dominance.py", "jtrees.py", "probe_orders.py")]
"""Plain functions that `optimize/compiled.py` compiles."""
FILES = sorted(
    file
    for file in PACKAGE.rglob("*.py")
    if file in COMPILED_ELSEWHERE or re.search(r"^@(numba\.)?njit", file.read_text(), re.MULTILINE)
)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_kernels_name_what_they_are_built_on(file: Path) -> None:
    declared = set(re.findall(r"^# Built on \S+ [0-9a-f]{12}$", file.read_text(), re.MULTILINE))
    assert declared == {f"# Built on {other.relative_to(PACKAGE)} {digest(other)}" for other in built_on(file)}


def test_there_are_kernels_built_on_another_file() -> None:
    names_of_files = ("dominance.py", "lookups.py", "probe_orders.py")
    assert built_on(PACKAGE / "optimize" / "jtrees.py") == {PACKAGE / "optimize" / name for name in names_of_files}


def built_on(file: Path) -> set[Path]:
    """The files from which compiled functions of this one take a name, and those that these are built on."""
    module = import_module(f"anabranch.{'.'.join(file.relative_to(PACKAGE).with_suffix('').parts)}")
    functions = [
        value.py_func for value in {**vars(module), **vars(compiled)}.values() if isinstance(value, Dispatcher)
    ]
    if file in COMPILED_ELSEWHERE:
        functions += [value for value in vars(module).values() if isinstance(value, FunctionType)]
    own = [function for function in functions if function.__module__ == module.__name__]
    used = {name for function in own for name in names(function.__code__)}
    sources = {
        PACKAGE / f"{home(vars(module)[name], node.module).removeprefix('anabranch.').replace('.', '/')}.py"
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("anabranch.")
        for name in used & {alias.asname or alias.name for alias in node.names}
    }
    return sources | {deeper for source in sources for deeper in built_on(source)}


def home(value: object, imported_from: str) -> str:
    """The module that defines a value: that of a function, which may be imported from another that passes it on."""
    function = value.py_func if isinstance(value, Dispatcher) else value
    return function.__module__ if isinstance(function, FunctionType) else imported_from


def names(code: CodeType) -> Iterator[str]:
    """The names that a function looks up outside itself."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names(constant)


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12]
