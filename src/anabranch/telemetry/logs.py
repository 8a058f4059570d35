"""The log of running queries: events with fields, through Python's `logging` under the name `anabranch`.

Without a handler nothing is shown. `json_lines` writes every event as one JSON object per line:

    {"time": "2026-11-17T05:12:33.120Z", "level": "info", "event": "batch", "run": "orders", "batch": 12, …}

Invariant: an event contains names, numbers, plans and the values of split keys, but no rows and no options. Probable
secrets are removed from error texts.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import IO, Any

from anabranch.settings.secrets import without_secrets

LOG = logging.getLogger("anabranch")
LOG.addHandler(logging.NullHandler())
VARIABLE = "ANABRANCH_LOG"
"""The environment variable that enables JSON lines."""
JSON = "json"
_FIELDS = "anabranch_fields"


def log_event(event: str, level: int = logging.INFO, **fields: Any) -> None:
    """Logs an event."""
    if LOG.isEnabledFor(level):
        LOG.log(level, event, extra={_FIELDS: fields})


def fields_of(record: logging.LogRecord) -> Mapping[str, Any]:
    """Returns the fields of an event; empty for any other record."""
    found: Mapping[str, Any] = getattr(record, _FIELDS, {})
    return found


class JsonLines(logging.Formatter):
    """Formats an event as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        fields = fields_of(record)
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = {"time": at, "level": record.levelname.lower(), "event": record.getMessage(), **fields}
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        return without_secrets(json.dumps(line, default=str))


def json_lines(stream: IO[str]) -> logging.Handler:
    """Writes all events, and Python's warnings, to a stream; returns the handler, which can be removed."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    LOG.propagate = False
    logging.captureWarnings(True)
    logging.getLogger("py.warnings").addHandler(handler)
    return handler


def is_json(option: str | None) -> bool:
    """True if JSON lines are enabled, by an option or by the environment."""
    return (option or os.environ.get(VARIABLE, "")).lower() == JSON
