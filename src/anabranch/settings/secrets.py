"""Secrets in options and texts: what they look like, and texts without them.

An option is a secret if its name says so (`password`, `secret`, `token`, `credential`, `access key`, …). In a text,
values of such names (`password=…`), passwords of URLs (`//user:…@host`) and `Bearer …` are secret.

A spec need not hold a secret: `${NAME}` in the value of an option stands for a variable of the environment, which is
read where the option is used.

Limit: a secret under a name that does not say so is not recognised.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

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
    """The options as Spark takes them: `${NAME}` is the value of the environment variable."""
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
    """True if the value of an option of that name must not be shown."""
    return _IS_SECRET.search(name) is not None


def hidden(options: Mapping[str, str]) -> dict[str, str]:
    """The options, with secrets replaced."""
    return {
        name: HIDDEN if is_secret(name) else without_secrets(value) if isinstance(value, str) else value
        for name, value in options.items()
    }


def without_secrets(text: str) -> str:
    """A text with what looks like a secret replaced."""
    text = _IN_URL.sub(rf"\g<1>{HIDDEN}\g<2>", text)
    text = _BEARER.sub(rf"\g<1>{HIDDEN}", text)
    return _VALUE.sub(rf"\g<name>\g<sign>{HIDDEN}", text)
