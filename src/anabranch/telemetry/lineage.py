"""OpenLineage events of running queries: their inputs, outputs, progress and outcome.

Spark's own listener does not see through `foreachBatch`, so a query emits its own events. Log events (`logs`) are
mapped to OpenLineage events: `started` to START, `batch` to RUNNING at most once a minute, `failed` and `ended` to
FAIL, ABORT or COMPLETE. `openlineage-python` sends them to the configured receiver (`OPENLINEAGE_URL`,
`openlineage.yml`).

Invariant: a query neither waits for the receiver nor fails with it. A separate thread sends the events, and a failure
to send is logged once.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from logging.handlers import QueueHandler, QueueListener
from queue import SimpleQueue
from typing import Any, Protocol
from urllib.parse import urlsplit

from anabranch.errors import HostError, installation
from anabranch.telemetry.logs import LOG, fields_of, log_event

try:
    VERSION = version("anabranch")
except PackageNotFoundError:  # not installed, run from source
    VERSION = "0"
PRODUCER = f"anabranch:{VERSION}"
SECONDS_BETWEEN_EVENTS = 60.0


class Client(Protocol):
    """The part of OpenLineage's client that is used."""

    def emit(self, event: Any) -> None: ...


def emit_lineage(namespace: str = "anabranch", client: Client | None = None) -> Callable[[], None]:
    """Sends events of all queries that start from now on; returns a function that stops it.

    Parameters
    ----------
    namespace
        The namespace of the jobs, and of streams.
    client
        An `OpenLineageClient`; by default one that is configured by the environment.
    """
    try:
        import openlineage.client as openlineage
    except ModuleNotFoundError as error:
        raise HostError("openlineage-python is not installed", hint=installation("lineage")) from error
    sender = _Sender(namespace, client or openlineage.OpenLineageClient())
    queue: SimpleQueue[logging.LogRecord] = SimpleQueue()
    inlet = QueueHandler(queue)
    listener = QueueListener(queue, sender)
    LOG.addHandler(inlet)
    if LOG.getEffectiveLevel() > logging.INFO:
        LOG.setLevel(logging.INFO)
    listener.start()

    def stop() -> None:
        LOG.removeHandler(inlet)
        listener.stop()

    return stop


class _Sender(logging.Handler):
    """Converts log events to OpenLineage events and sends them."""

    def __init__(self, namespace: str, client: Client) -> None:
        super().__init__()
        self._namespace = namespace
        self._client = client
        self._runs: dict[str, _Run] = {}
        self._has_failed = False

    def emit(self, record: logging.LogRecord) -> None:
        fields = fields_of(record)
        name = str(fields.get("run", ""))
        if record.getMessage() == "started":
            self._runs[name] = _Run(self._namespace, name, fields)
        run = self._runs.get(name)
        if run is None:
            return
        try:
            event = run.event(record.getMessage(), fields, record.created)
            if event is not None:
                self._client.emit(event)
        except Exception as error:
            if not self._has_failed:
                self._has_failed = True
                log_event("lineage", logging.WARNING, message=f"events cannot be sent: {type(error).__name__}: {error}")


class _Run:
    """One run of a query as an OpenLineage run."""

    def __init__(self, namespace: str, name: str, started: Mapping[str, Any]) -> None:
        self._namespace, self._name, self._started = namespace, name, started
        self._id = str(uuid.uuid4())
        self._last_event = 0.0
        self._failure: str | None = None

    def event(self, kind: str, fields: Mapping[str, Any], at: float) -> Any:
        """Returns the OpenLineage event for a log event, or None."""
        from openlineage.client.event_v2 import RunState

        match kind:
            case "started":
                return self._event(RunState.START, at)
            case "batch":
                if at - self._last_event < SECONDS_BETWEEN_EVENTS:
                    return None
                self._last_event = at
                return self._event(RunState.RUNNING, at)
            case "failed":
                self._failure = str(fields.get("message", ""))
                return None
            case "ended":
                is_over = fields.get("finished", False)
                state = RunState.FAIL if fields.get("failed") else RunState.COMPLETE if is_over else RunState.ABORT
                return self._event(state, at)
        return None

    def _event(self, state: Any, at: float) -> Any:
        from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent
        from openlineage.client.facet_v2 import (
            error_message_run,
            job_type_job,
            processing_engine_run,
            schema_dataset,
            sql_job,
        )

        run_facets: dict[str, Any] = {
            "processing_engine": processing_engine_run.ProcessingEngineRunFacet(
                version=VERSION, name="anabranch on spark"
            )
        }
        if self._failure is not None:
            run_facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
                message=self._failure, programmingLanguage="python"
            )
        job_facets = {
            "sql": sql_job.SQLJobFacet(query=str(self._started.get("text", ""))),
            "jobType": job_type_job.JobTypeJobFacet(
                processingType="STREAMING", integration="ANABRANCH", jobType="QUERY"
            ),
        }
        inputs = [
            InputDataset(
                namespace=self._namespace,
                name=stream,
                facets={
                    "schema": schema_dataset.SchemaDatasetFacet(
                        fields=[schema_dataset.SchemaDatasetFacetFields(name=column) for column in columns]
                    )
                },
            )
            for stream, columns in self._started.get("inputs", {}).items()
        ]
        places = (_dataset(place, self._namespace) for place in self._started.get("outputs", {}).values())
        outputs = [OutputDataset(namespace=namespace, name=name) for namespace, name in places]
        return RunEvent(
            eventType=state,
            eventTime=datetime.fromtimestamp(at, UTC).isoformat(),
            run=Run(runId=self._id, facets=run_facets),
            job=Job(namespace=self._namespace, name=self._name, facets=job_facets),
            producer=PRODUCER,
            inputs=inputs,
            outputs=outputs,
        )


def _dataset(place: str, namespace: str) -> tuple[str, str]:
    """Returns the OpenLineage namespace and name of a location: a server and a path on it."""
    parts = urlsplit(place)
    if parts.scheme and parts.netloc:
        return f"{parts.scheme}://{parts.netloc}", parts.path or "/"
    if place.startswith("/"):
        return "file", place
    return namespace, place
