"""Durations as users of the API write them; what is wrong with one is told with whose it is."""

from __future__ import annotations

from anabranch.errors import AnabranchError
from anabranch.window import parse_duration


def read_duration(text: object, what: str, kind: type[AnabranchError]) -> int:
    """Microseconds."""
    # A number alone has no unit, and Spark users write durations as texts.
    if not isinstance(text, str):
        raise kind(f"{what} is {text!r}", hint="write it as a text with its unit, like '10 seconds'")
    try:
        return parse_duration(text)
    except ValueError as error:
        raise kind(f"{what} is no duration", detail=str(error), hint="write it like '10 seconds'") from error


def read_timeout(text: object, whose: str, kind: type[AnabranchError]) -> int | None:
    """Microseconds, or None for `none`."""
    if isinstance(text, str) and text.lower() == "none":
        return None
    micros = read_duration(text, f"the idle timeout {whose}", kind)
    if micros <= 0:
        raise kind(f"the idle timeout {whose} is not positive", hint="write 'none' to wait for ever")
    return micros
