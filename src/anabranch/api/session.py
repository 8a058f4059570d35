"""A session: streams by name inside one Spark session, and the queries over them.

Invariant: a name stands for one stream, table or query. Limit: registering a name again does not change compiled
queries.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial

import pyarrow as pa

from anabranch.api.compiled import CompiledQuery, RegisteredStream
from anabranch.api.frame import Frame
from anabranch.api.query import ContinuousQuery
from anabranch.api.together import Together
from anabranch.api.writer import ContinuousQueryWriter
from anabranch.console.runs import LiveRun
from anabranch.console.server import LOOPBACK, Console
from anabranch.cql import declared_results
from anabranch.errors import CatalogError, SlowFunction
from anabranch.functions import own_function
from anabranch.lang.catalog import Catalog, StreamDeclaration, TableDeclaration
from anabranch.lang.window import duration_text
from anabranch.planning.explain import Explanation
from anabranch.run.stream_sample import StreamSample
from anabranch.settings.entries import argument
from anabranch.spark import session as spark_host
from anabranch.spark.arrow_schema import from_spark
from anabranch.spark.sample import FrameSample
from anabranch.spark.started import ContinuousQueries
from anabranch.spark.tables import Rows, TableSource, schema_of
from anabranch.spark.warming import warm_workers

_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")


class Session:
    """Streams by name, and the continuous queries over them, inside one Spark session.

    Parameters
    ----------
    spark
        The Spark session that reads the streams and runs the queries.

    Examples
    --------
    >>> session = anabranch.Session(spark)  # doctest: +SKIP
    >>> session.register("orders", orders, event_time="at", watermark="5 seconds")  # doctest: +SKIP
    >>> session.register("clicks", clicks, event_time="at")  # doctest: +SKIP
    >>> query = session.sql('''
    ...     SELECT o.id, c.page FROM orders [RANGE 1 MINUTE] AS o, clicks [RANGE 10 MINUTES] AS c
    ...     WHERE o.customer = c.customer
    ... ''')  # doctest: +SKIP
    >>> handle = query.writeStream.format("memory").queryName("bought").start()  # doctest: +SKIP
    """

    def __init__(self, spark: spark_host.SparkSession) -> None:
        spark_host.refuse_connect(spark)
        self.spark = spark
        self.catalog = Catalog()
        self.streams = ContinuousQueries(spark)
        self._streams: dict[str, RegisteredStream] = {}
        self._tables: dict[str, TableSource] = {}
        warm_workers(spark)

    def register(
        self,
        name: str,
        frame: spark_host.DataFrame | ContinuousQuery,
        event_time: str | None = None,
        watermark: str | None = None,
        idle_timeout: str | None = None,
        sample: spark_host.DataFrame | Callable[[], StreamSample | None] | None = None,
        max_ahead: str | None = None,
    ) -> None:
        """Registers a streaming DataFrame under a name, or names a query; replaces a stream of that name.

        The results of a named query are a stream that other queries may read. The event time of a result is that of its
        newest row; for a grouped query it is the end of the window. Such rows are never late.

        Parameters
        ----------
        name
            The name of the stream in queries: letters, digits and `_`; case-insensitive.
        frame
            A streaming DataFrame, from `spark.readStream`, or a query, which needs no other arguments.
        event_time
            The timestamp column with the event time; required for a DataFrame.
        watermark
            The allowed delay of a row behind the newest row of its stream. Later rows are dropped and counted, or go to
            the writer's `late` sink. The default is the `withWatermark` of the frame. Without either, rows must arrive
            in order, and the first late row raises a warning (`LateRowsDropped`).
        idle_timeout
            After this time without rows, a stream no longer holds back the watermark; `none` disables this. The default
            is the writer's `idleTimeout`, else 10 minutes.
        sample
            Some rows of the stream as a batch DataFrame with the same columns, such as its first files read with
            `spark.read`, or a function that returns one on demand. Plans are then chosen by the statistics of these
            rows. The whole sample is read, once for all queries of a run.
        max_ahead
            How far an event time may be ahead of the current time. Rows further ahead are counted and excluded, so that
            one wrong clock does not make all later rows late. Without it, every event time is accepted.

        Raises
        ------
        CatalogError
            When the frame is not streaming, lacks the column, has a column of an unsupported type, or has a different
            watermark from the one given.
        """
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise CatalogError(f"'{name}' is not a valid stream name", hint="use letters, digits and _, a letter first")
        known = self.catalog.find(name)
        if isinstance(frame, ContinuousQuery):
            if known is not None:
                kind = "stream" if known.query is None else "query"
                raise CatalogError(f"a {kind} is named '{known.name}' already", hint="give the query another name")
            if any(given is not None for given in (event_time, watermark, idle_timeout, sample, max_ahead)):
                raise _settings_of_a_stream(name)
            self.catalog.register(declared_results(name, frame.compiled.query))
            return
        if known is not None and known.query is not None:
            raise CatalogError(f"a query is named '{known.name}' already", hint="give the stream another name")
        stream = _stream(name, frame, event_time, watermark, idle_timeout, sample, max_ahead)
        self.catalog.register(stream.declaration)
        self._tables.pop(name.lower(), None)
        self._streams[name.lower()] = stream

    def table(
        self,
        name: str,
        frame: spark_host.DataFrame | Callable[[], Rows],
        refresh: str | None = None,
        version: Callable[[], object] | None = None,
    ) -> None:
        """Registers a table under a name, or replaces the stream or table of that name.

        Queries join a table without a window: its rows have no event time and are always valid. A stream row is joined
        with the version of the table in the batch that completes the result.

        Parameters
        ----------
        name
            The name of the table in queries: letters, digits and `_`; case-insensitive.
        frame
            A batch DataFrame, from `spark.read`, that is read when a query starts; or a function that returns one, or a
            `pyarrow.Table`, for tables that are refreshed while queries run.
        refresh
            The refresh interval, such as `10 minutes`. The default is never.
        version
            A function whose return value changes when the table has changed. It is called before every batch; a new
            value triggers a refresh.

        Raises
        ------
        CatalogError
            When the frame is streaming, cannot be read again, or has a column of an unsupported type.
        """
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise CatalogError(f"'{name}' is not a valid table name", hint="use letters, digits and _, a letter first")
        first: Rows
        if isinstance(frame, spark_host.DataFrame):
            if refresh is not None or version is not None:
                raise CatalogError(
                    f"table '{name}' is a DataFrame, which cannot be read again",
                    detail="a DataFrame keeps the files that it was created from",
                    hint="pass a function, such as lambda: spark.read.parquet(path)",
                )
            first = frame
        elif callable(frame):
            first = frame()
        else:
            raise CatalogError(f"table '{name}' is not a DataFrame", detail=f"it is {frame!r}", hint="use spark.read")
        is_batch = isinstance(first, pa.Table) or (isinstance(first, spark_host.DataFrame) and not first.isStreaming)
        if not is_batch:
            raise CatalogError(f"table '{name}' is not a batch DataFrame", hint="read it with spark.read")
        schema = schema_of(first, name)
        every = None
        if refresh is not None:
            every = argument(f"the refresh of table '{name}'", refresh, CatalogError).duration()
        self.catalog.register_table(TableDeclaration(name, schema))
        self._streams.pop(name.lower(), None)
        self._tables[name.lower()] = TableSource(
            frame if callable(frame) else partial(_same, frame), schema, every, version
        )

    @property
    def frames(self) -> dict[str, spark_host.DataFrame]:
        """The frames of all registered streams, by name."""
        return {stream.declaration.name: stream.frame for stream in self._streams.values()}

    def __dir__(self) -> list[str]:
        return [
            name for name in super().__dir__() if name not in {"frames", "registered", "without_queries", "catalog"}
        ]

    def without_queries(self) -> Session:
        """Returns a session with the same streams, tables and functions, but without named queries."""
        other = copy(self)
        other.catalog = self.catalog.without_queries()
        other._streams, other._tables = dict(self._streams), dict(self._tables)
        return other

    def registered(self, name: str) -> RegisteredStream:
        """Returns a registered stream; names are case-insensitive."""
        return self._streams[name.lower()]

    def function(
        self,
        name: str,
        code: Callable[..., object],
        returns: str,
        *,
        takes: Sequence[str] | None = None,
        kind: str = "arrow",
        nulls: str = "skip",
        version: str = "",
        never_fails: bool = False,
        deterministic: bool = True,
    ) -> None:
        """Registers a user-defined function for SELECT, WHERE and ON of queries compiled from now on.

        Parameters
        ----------
        name
            Its name in queries; must not be the name of a built-in function.
        code
            A function of one pyarrow array per argument, which returns a pyarrow or numpy array with a value per row.
            It is sent to the workers with each batch; a function of a module must be importable there.
        returns
            The type of its values, such as `double`.
        takes
            The types of its arguments, such as `["double", "string"]`; arguments are widened to them. Without it,
            arguments keep their own types.
        kind
            `arrow`, `pandas` for series, or `scalar` for single values; the last two are slow and raise a warning.
        nulls
            `skip`: rows with a NULL argument give NULL without a call. `pass`: the function gets them.
        version
            A text that you change when the function's meaning changes. A checkpoint belongs to one version.
        never_fails
            Declares that it raises on no row; it may then be evaluated on rows that other conditions reject.
        deterministic
            Only True: a batch may be repeated, and a plan may compute a value twice.

        Examples
        --------
        >>> session.function("score", lambda price, size: pc.multiply(price, size), returns="double")  # doctest: +SKIP
        """
        for title, given in (("never_fails", never_fails), ("deterministic", deterministic)):
            argument(f"'{title}' of function '{name}'", given, CatalogError).flag()
        if not deterministic:
            raise CatalogError(
                f"function '{name}' is not deterministic",
                detail="a batch may be repeated after a crash, and a plan may compute a value twice",
                hint="compute the value in a source that stores it, before the DataFrame is registered",
            )
        own = own_function(
            name, code, returns, takes=takes, kind=kind, nulls=nulls, version=version, never_fails=never_fails
        )
        if kind != "arrow":
            warnings.warn(
                f"function '{name}' computes {'pandas series' if kind == 'pandas' else 'single values'}; "
                "a function of Arrow arrays is many times as fast",
                SlowFunction,
                stacklevel=2,
            )
        self.catalog.define(own)

    def sql(self, text: str, allow_unbounded: bool = False, late_filters: Sequence[str] = ()) -> ContinuousQuery:
        """Compiles a CQL query over the currently registered streams.

        Parameters
        ----------
        text
            A CQL query over registered streams.
        allow_unbounded
            Allows a join over `[UNBOUNDED]` windows, whose state grows without limit.
        late_filters
            Filters checked by joins instead of the source: relations, or texts of single conditions. They may change on
            restart. `["auto"]` places costly filters by cost before the first start.

        Raises
        ------
        CqlError
            When the text is invalid; names the position, and what was expected there or which names exist.
        """
        argument("'allow_unbounded'", allow_unbounded).flag()
        # A copy of the catalog: later registrations do not affect a compiled query.
        stages = Explanation(text, self.catalog.copy(), allow_unbounded=allow_unbounded, late_filters=late_filters)
        return ContinuousQuery(self, CompiledQuery(stages, self.registered, dict(self._tables)))

    def frame(self, frame: spark_host.DataFrame) -> Frame:
        """Returns a DataFrame as the input of a query that is built by methods.

        A streaming DataFrame needs `withWatermark`, which names its event time. A batch DataFrame is a table.

        Examples
        --------
        >>> i, c = session.frame(impressions).alias("i"), session.frame(clicks).alias("c")  # doctest: +SKIP
        >>> i.join(c, "c.id = i.id AND c.ts BETWEEN i.ts AND i.ts + INTERVAL 20 SECONDS", "left")  # doctest: +SKIP
        """
        if not isinstance(frame, spark_host.DataFrame):
            raise CatalogError("frame() needs a DataFrame", detail=f"found {frame!r}", hint="use spark.readStream")
        return Frame(self, {"": frame})

    def console(self, port: int | None = None, host: str = LOOPBACK, token: str | None = None) -> Console:
        """Serves a web page with the queries of this session, and `/metrics` for Prometheus.

        Parameters
        ----------
        port
            The port; by default the first free one from 4060.
        host
            The address to listen on; by default only this machine can reach the page.
        token
            Lets clients that send it change plans and move partition groups from the page. Without a token the page is
            read-only.

        Returns
        -------
        Console
            Its `url` is the address of the page, and `close()` stops serving.

        Raises
        ------
        HostError
            When the port is taken, or the packages of the extra `console` are not installed.

        Examples
        --------
        >>> session.console().url  # doctest: +SKIP
        'http://127.0.0.1:4060/'
        """
        runs: dict[str, LiveRun] = {}

        def started() -> list[LiveRun]:
            for handle in self.streams.started:
                if handle.runId not in runs:
                    runs[handle.runId] = LiveRun(handle)
            return list(runs.values())

        return Console(started, host=host, port=port, token=token)

    def together(self, **queries: ContinuousQueryWriter) -> Together:
        """Prepares several queries to start as one: their streams are read, partitioned and stored once.

        Parameters
        ----------
        queries
            The writer of each query, by query name. Queries share a relation if they use the same alias for it; windows
            and filters may differ.

        Raises
        ------
        BundleError
            When queries cannot share their rows; names the reason and the remedy.
        """
        return Together(self, queries)


def _settings_of_a_stream(name: str) -> CatalogError:
    return CatalogError(
        f"query '{name}' is registered with settings of a stream",
        detail="its event time, watermark and rows follow from the streams that it reads",
        hint=f"write register('{name}', query)",
    )


def _sampling(
    name: str, sample: spark_host.DataFrame | Callable[[], StreamSample | None] | None
) -> Callable[[], StreamSample | None] | None:
    """Returns the function that samples a stream; None without a sample."""
    hint = "read it with spark.read"
    if isinstance(sample, spark_host.DataFrame):
        if sample.isStreaming:
            raise CatalogError(f"the sample of stream '{name}' is a streaming DataFrame", hint=hint)
        return partial(FrameSample, sample)
    if sample is not None and not callable(sample):
        raise CatalogError(f"the sample of stream '{name}' is not a DataFrame", hint=hint)
    return sample


def _stream(
    name: str,
    frame: object,
    event_time: str | None,
    watermark: str | None,
    idle_timeout: str | None,
    sample: spark_host.DataFrame | Callable[[], StreamSample | None] | None,
    max_ahead: str | None,
) -> RegisteredStream:
    """Returns a stream from the arguments of `Session.register`, all of them checked."""
    if not isinstance(frame, spark_host.DataFrame):
        raise CatalogError(
            f"stream '{name}' is not a DataFrame", detail=f"it is {frame!r}", hint="read it with spark.readStream"
        )
    event_time = argument(f"the event time of stream '{name}'", event_time, CatalogError).text(
        "name a timestamp column"
    )
    if not frame.isStreaming:
        raise CatalogError(
            f"stream '{name}' is a batch DataFrame", hint="read it with spark.readStream instead of spark.read"
        )
    schema = from_spark(frame.schema, name)
    column = schema.find(event_time)
    time = event_time if column is None else column.name
    disorder = _disorder(name, frame, time, watermark)
    declaration = StreamDeclaration(name, schema, time, disorder or 0)
    lead = None if max_ahead is None else argument(f"'max_ahead' of stream '{name}'", max_ahead, CatalogError)
    if idle_timeout is not None:
        argument(f"the idle timeout of stream '{name}'", idle_timeout, CatalogError).timeout()
    return RegisteredStream(
        declaration,
        frame,
        idle_timeout,
        _sampling(name, sample),
        max_ahead=None if lead is None else lead.duration(),
        has_watermark=disorder is not None,
    )


def _disorder(name: str, frame: spark_host.DataFrame, event_time: str, given: str | None) -> int | None:
    """Returns the allowed disorder of a stream: as given, else the frame's own; None without either."""
    wanted = None
    if given is not None:
        wanted = argument(f"the watermark of stream '{name}'", given, CatalogError).duration()
    for column, own in spark_host.watermarks(frame).items():
        if column != event_time:
            raise CatalogError(
                f"stream '{name}' has a watermark on column '{column}', and its event time is '{event_time}'",
                hint=f"register it with event_time='{column}', or call withWatermark on '{event_time}'",
            )
        if wanted not in (None, own):
            raise CatalogError(
                f"stream '{name}' is registered with a watermark of {given}, and its frame has one of "
                f"{duration_text(own)}",
                hint="omit one of them: without a watermark argument, the frame's withWatermark is used",
            )
        wanted = own
    return wanted


def _same(frame: spark_host.DataFrame) -> spark_host.DataFrame:
    return frame
