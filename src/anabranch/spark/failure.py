"""Converts failures of Spark, sources and sinks to Anabranch errors that name the failing part.

Invariant: an Anabranch error passes unchanged. Limit: Spark reports many failures only as text, so causes are
recognized by patterns.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import (
    AnalysisException,
    PySparkException,
    PythonException,
    StreamingQueryException,
    UnsupportedOperationException,
)
from pyspark.sql import DataFrame, SparkSession

from anabranch import errors
from anabranch.errors import (
    AnabranchError,
    CatalogError,
    CheckpointError,
    CorruptCheckpoint,
    ExpressionError,
    FunctionError,
    HostError,
    SinkError,
)
from anabranch.run.functions import named
from anabranch.settings.secrets import without_secrets
from anabranch.spark.internals.driver import is_stopped
from anabranch.spark.session import first_cause


def query_id(frame: DataFrame) -> str:
    """Returns the identity of the running query, which restarts keep; empty outside a streaming query."""
    return frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId") or ""


@contextmanager
def named_failure(sink: str, batch_id: int) -> Iterator[None]:
    """Converts any error of a sink to a SinkError with the sink's title."""
    try:
        yield
    except AnabranchError:
        raise
    except Exception as error:
        raise SinkError(
            f"sink {sink} failed on batch {batch_id}",
            detail=_first_line(error),
            hint="the batch is not committed; fix the cause, then restart the query from its checkpoint",
        ) from error


def _first_line(error: Exception) -> str:
    """Returns the cause in one line; py4j's own first line only names the call."""
    if isinstance(error, Py4JError):
        return first_cause(error)
    return without_secrets(f"{type(error).__name__}: {error}".partition("\n")[0])


@contextmanager
def named_source(name: str, kind: str = "stream") -> Iterator[None]:
    """Converts Spark errors on opening or reading a source to an error that names the stream or table."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise CatalogError(
            f"{kind} '{name}' cannot be read",
            detail=first_cause(error),
            hint="check its format, its path or table, and its options",
        ) from error


@contextmanager
def named_start(checkpoint: str) -> Iterator[None]:
    """Converts Spark's errors at the start of a query to an error about the streams or the checkpoint."""
    try:
        yield
    except AnalysisException as error:
        raise CatalogError(
            "Spark cannot run the frames of the query's streams",
            detail=first_cause(error),
            hint="change the operations of the frames before they are registered",
        ) from error
    except (PySparkException, Py4JError) as error:
        if _IN_USE in str(error):
            raise CheckpointError(
                f"checkpoint '{checkpoint}' is in use by a running query",
                detail=first_cause(error),
                hint="stop that query first, or set spark.sql.streaming.stopActiveRunOnRestart=true",
            ) from error
        raise CorruptCheckpoint(
            f"checkpoint '{checkpoint}' has a part of Spark's own that cannot be used",
            detail=first_cause(error),
            hint=_RESTORE,
        ) from error


def damaged_log(error: StreamingQueryException) -> CorruptCheckpoint | None:
    """Returns a CorruptCheckpoint if the error is about a damaged or missing file of Spark's part of the checkpoint."""
    reason = spark_reason(error)
    if _DAMAGED_LOG.search(reason) is None:
        return None
    return CorruptCheckpoint("Spark's part of the checkpoint cannot be used", detail=reason, hint=_RESTORE)


@contextmanager
def named_end() -> Iterator[None]:
    """Converts an error of Spark or of a source that ended a query to a HostError, for queries from a spec."""
    try:
        yield
    except StreamingQueryException as error:
        raise HostError(
            "the query was ended by Spark",
            detail=spark_reason(error),
            hint="the checkpoint remains valid for a restart; --verbose shows Spark's log",
        ) from error


def spark_reason(error: StreamingQueryException) -> str:
    """Returns the reason for the end of a query, in one line, without query identifiers."""
    first = str(error).strip().partition("\n")[0]
    return without_secrets(first.rpartition("terminated with exception: ")[2].removesuffix(" SQLSTATE: XXKST"))


_DAMAGED_LOG = re.compile(r"Failed to read log file|CONCURRENT_STREAM_LOG_UPDATE|batch \d+ doesn't exist")
"""Spark takes a missing file for a second driver in the same folder."""
_RESTORE = (
    "if another driver uses the folder, stop one of them; "
    "else restore the whole folder from a copy, or start with an empty checkpoint folder"
)


def refuses_schema(error: Exception) -> bool:
    """Returns True if a source refuses a schema because its columns are fixed, as for rate and kafka."""
    return isinstance(error, UnsupportedOperationException)


def lacks_connector(error: AnalysisException) -> bool:
    """Returns True if Spark does not know a format because its package is missing."""
    return error.getCondition() == "KAFKA_DATA_SOURCE_NOT_ENABLED"


@contextmanager
def evaluating(batch_id: int) -> Iterator[None]:
    """Attributes errors of computing the frame to the engine or the source, not to the sink."""
    try:
        yield
    except PythonException as error:
        own = step_error(error)
        if isinstance(own, FunctionError) and " in batch " not in own.message:
            own = named(own, [], batch_id)
        if own is not None:
            raise own from error
        gist = _gist(str(error))
        raise HostError(
            f"a Python worker failed on batch {batch_id}",
            detail=gist,
            hint=f"set PYSPARK_PYTHON={sys.executable} before Spark starts: workers need the environment of the driver"
            if gist.startswith("ModuleNotFoundError")
            else "if the sources use Python functions, look there first; the batch is not committed",
        ) from error
    except Exception as error:
        if _is_data_exception(error):
            raise ExpressionError(
                f"an expression failed on batch {batch_id}",
                detail=str(error).strip().partition("\n")[0],
                hint="the batch is not committed; guard the expression against such values, or cast to a wider type",
            ) from error
        if _BAD_FILE in str(error):
            raise CatalogError(
                f"a file of a stream cannot be read, on batch {batch_id}",
                detail=next(line for line in str(error).splitlines() if _BAD_FILE in line).partition("] ")[2],
                hint="the batch is not committed; fix the file, or give the stream the columns of the file",
            ) from error
        if _DEAD_WORKER in str(error):
            raise HostError(
                f"a Python worker died on batch {batch_id}",
                detail=_DEAD_WORKER,
                hint="the batch is not committed; if the machine ran out of memory, use more slots or shorter windows",
            ) from error
        raise


def for_spark(error: BaseException) -> BaseException:
    """Returns the error without its Java stacks, which Spark already has.

    To detect a stopped query, Spark searches the text after py4j's name for an interrupt, with a pattern that overflows
    the JVM's stack on a long text. The query's thread would then end with that overflow instead of as stopped.
    """
    inner = next((each for each in _chain(error) if isinstance(each, Py4JJavaError)), None)
    if inner is None:
        return error
    causes = "\n".join(line for line in str(inner).splitlines() if line.startswith((": ", "Caused by: ")))
    name = f"{Py4JJavaError.__module__}.{Py4JJavaError.__name__}"
    ours = f"{type(error).__name__}: {error}\n" if isinstance(error, AnabranchError) else ""
    return RuntimeError(without_secrets(f"{ours}{name}: An error occurred while calling Spark\n{causes[:_MUCH]}"))


class QueryStopped(Exception):
    """Ends a batch that Spark began after its query was stopped; not an error.

    Spark must not commit the batch, and treats an error with this text as the requested stop.
    """

    def __init__(self) -> None:
        name = f"{Py4JJavaError.__module__}.{Py4JJavaError.__name__}"
        super().__init__(f"{name}: An error occurred while calling Spark\n: {_INTERRUPT}: the query was stopped")


def is_interrupt(error: BaseException) -> bool:
    """Returns True if a batch failed only because its query was stopped."""
    return any(_INTERRUPTED.search(str(each)) is not None for each in _chain(error))


def is_spark_gone(spark: SparkSession) -> bool:
    """Returns True if the Spark context or its JVM has ended or is ending."""
    try:
        return is_stopped(spark)
    except (Py4JError, OSError, AttributeError):
        return True


@contextmanager
def unless_gone(spark: SparkSession, is_expected: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Suppresses errors if Spark has ended and that was expected."""
    try:
        yield
    except Exception:
        if not (is_expected() and is_spark_gone(spark)):
            raise


def _chain(error: BaseException) -> Iterator[BaseException]:
    inner: BaseException | None = error
    while inner is not None:
        yield inner
        inner = inner.__cause__ or inner.__context__


# Py4J logs exceptions of a callback as its own errors.
logging.getLogger("py4j.clientserver").addFilter(
    lambda record: record.exc_info is None or not isinstance(record.exc_info[1], QueryStopped)
)

_INTERRUPT = "java.lang.InterruptedException"
_INTERRUPTED = re.compile(r"java\.[\w.]+Interrupt\w*Exception|cancelled part of cancelled job group")
_MUCH = 1000
_IN_USE = "is already active"
_DEAD_WORKER = "Python worker exited unexpectedly"
_BAD_FILE = "[FAILED_READ_FILE"


def _is_data_exception(error: Exception) -> bool:
    """Returns True for errors in values: SQLSTATE class 22, overflows and invalid casts."""
    return isinstance(error, PySparkException) and (error.getSqlState() or "").startswith("22")


def _gist(text: str) -> str:
    """Returns the final error of a worker's traceback."""
    traceback = re.split(r"\n\s*\n|\n\s+at ", text.partition("Traceback (most recent call last):")[2].strip("\n"))[0]
    after = re.split(r"\n {2,}.*", traceback)[-1].strip()
    return without_secrets(after or text.strip().partition("\n")[0])


_STEP_ERROR = re.compile(r"^anabranch\.errors\.(\w+): (.*?)(?=\n\s*\n|\n\s+at |\Z)", re.MULTILINE | re.DOTALL)


def step_error(error: PythonException) -> AnabranchError | None:
    """Rebuilds the engine's error in a worker from the text in Spark's error."""
    found = _STEP_ERROR.search(str(error))
    kind = getattr(errors, found.group(1), None) if found else None
    if found is None or not isinstance(kind, type) or not issubclass(kind, AnabranchError):
        return None
    message, *rest = found.group(2).strip().split("\n")
    hints = [line.removeprefix("hint: ") for line in rest if line.startswith("hint: ")]
    detail = "\n".join(line for line in rest if not line.startswith("hint: "))
    if issubclass(kind, errors.CqlError):
        return errors.InvariantBroken(message, detail=detail)
    return kind(message, detail=detail, hint="\n".join(hints))
