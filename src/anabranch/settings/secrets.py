"""Detects secrets in options and texts, and removes them from output.

An option is a secret if its name indicates one (`password`, `secret`, `token`, `credential`, `access key`, …). In a
text, values of such names (`password=…`), passwords of URLs (`//user:…@host`) and `Bearer …` are secret.

A spec need not contain a secret: `${NAME}` in the value of an option is replaced by the environment variable when the
option is used.

Limit: a secret under any other name is not detected.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from anabranch.errors import SpecError

HIDDEN = "***"
_NAME = r"(?:pass(?:word|wd|phrase)?|pwd|secret|token|credentials?|api[-_.]?key|access[-_.]?key|private[-_.]?key|jaas)"
_IS_SECRET = re.compile(_NAME, re.IGNORECASE)
_VALUE = re.compile(
    rf"""(?P<name>[\w.\-]*{_NAME}[\w.\-]*)(?P<sign>\\?["']?\s*(?:=|:)\s*)(?P<value>\\?"[^"]*"|'[^']*'|[^\s,;&)}}\]"']+)""",
    re.IGNORECASE,
)
_IN_URL = re.compile(r"(//[^\s/:@]+:)[^\s/@]+(@)")
_BEARER = re.compile(r"(Bearer\s+)[\w.\-~+/]+=*", re.IGNORECASE)


_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def from_environment(options: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Returns the options for Spark, with `${NAME}` replaced by the environment variable."""
    taken = dict(options)
    for option, value in taken.items():
        for variable in _VARIABLE.findall(value):
            if variable not in os.environ:
                raise SpecError(
                    f"option '{option}' needs the environment variable '{variable}', which is not set",
                    hint=f"set it where the query starts: export {variable}=…",
                )
    return {option: _VARIABLE.sub(lambda found: os.environ[found[1]], value) for option, value in taken.items()}


def is_secret(name: str) -> bool:
    """True if the value of an option with that name must not be shown."""
    return _IS_SECRET.search(name) is not None


def without_secrets(text: str) -> str:
    """Returns a text with probable secrets replaced."""
    text = _IN_URL.sub(rf"\g<1>{HIDDEN}\g<2>", text)
    text = _BEARER.sub(rf"\g<1>{HIDDEN}", text)
    return _VALUE.sub(rf"\g<name>\g<sign>{HIDDEN}", text)
