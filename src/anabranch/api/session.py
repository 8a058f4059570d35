"""A session: streams by name inside one Spark session, and the queries over them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial

from anabranch.api.compiled import CompiledQuery, RegisteredStream
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
from anabranch.settings.entries import argument
from anabranch.spark import session as spark_host
from anabranch.spark.arrow_schema import from_spark
from anabranch.spark.sample import StreamSample
from anabranch.spark.started import ContinuousQueries
from anabranch.spark.tables import TableSource
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
        """Registers a streaming DataFrame under a name, or replaces the stream of that name; or names a query.

        The results of a query under a name are a stream that other queries may read. Their event time is that of the
        newest row of each result, of a grouped query the end of the window; nothing of it is ever late.

        Parameters
        ----------
        name
            The name of the stream in queries: letters, digits and `_`; case does not matter.
        frame
            A streaming DataFrame, from `spark.readStream`, or a query, which needs no other arguments.
        event_time
            The timestamp column that says when a row happened; required for a DataFrame.
        watermark
            How far a row may lag behind the newest row of its stream; later rows are dropped and counted, or go to the
            writer's `late` sink. The default is the `withWatermark` of the frame. Without either, rows must arrive in
            order, and the first late row raises a warning (`LateRowsDropped`).
        idle_timeout
            A stream without rows for this long no longer holds the others back; `none` to wait for ever. The default is
            the writer's `idleTimeout`, else 10 minutes.
        sample
            Some rows of the stream as a batch DataFrame of the same columns, such as its first files read with
            `spark.read`, or a function that returns them when they are needed. Plans are then chosen by statistics of
            these rows. The whole sample is read, once for all queries of a run.
        max_ahead
            How far the event time of a row may lie ahead of the time of day. A row further ahead is counted and takes
            no part, so that one wrong clock does not make all later rows late. Without it every event time counts.

        Raises
        ------
        CatalogError
            When the frame is not streaming, lacks the column, has a column of a type that cannot be carried, or has
            another watermark than the one given.
        """
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise CatalogError(f"'{name}' is not a valid stream name", hint="use letters, digits and _, a letter first")
        known = self.catalog.find(name)
        if isinstance(frame, ContinuousQuery):
            if known is not None:
                kind = "stream" if known.query is None else "query"
                raise CatalogError(f"a {kind} is named '{known.name}' already", hint="give the query another name")
            if any(given is not None for given in (event_time, watermark, idle_timeout, sample, max_ahead)):
                raise CatalogError(
                    f"query '{name}' is registered with settings of a stream",
                    detail="its event time, its watermark and its rows follow from the streams that it reads",
                    hint=f"write register('{name}', query)",
                )
            self.catalog.register(declared_results(name, frame.compiled.query))
            return
        if known is not None and known.query is not None:
            raise CatalogError(f"a query is named '{known.name}' already", hint="give the stream another name")
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
        if isinstance(sample, spark_host.DataFrame):
            if sample.isStreaming:
                raise CatalogError(
                    f"the sample of stream '{name}' is a streaming DataFrame", hint="read it with spark.read"
                )
            sample = partial(StreamSample, sample)
        elif sample is not None and not callable(sample):
            raise CatalogError(f"the sample of stream '{name}' is not a DataFrame", hint="read it with spark.read")
        self.catalog.register(declaration)
        self._tables.pop(name.lower(), None)
        self._streams[name.lower()] = RegisteredStream(
            declaration,
            frame,
            idle_timeout,
            sample,
            max_ahead=None if lead is None else lead.duration(),
            has_watermark=disorder is not None,
        )

    def table(
        self,
        name: str,
        frame: spark_host.DataFrame | Callable[[], spark_host.DataFrame],
        refresh: str | None = None,
        version: Callable[[], object] | None = None,
    ) -> None:
        """Registers a table under a name, or replaces the stream or table of that name.

        Queries join a table without a window: its rows have no event time and are always valid. A row of a stream
        meets the table as it is in the batch that completes the result.

        Parameters
        ----------
        name
            The name of the table in queries: letters, digits and `_`; case does not matter.
        frame
            A batch DataFrame, from `spark.read`, that is read when a query starts; or a function that returns one, if
            the table is to be read again while queries run.
        refresh
            How often the table is read again, such as `10 minutes`. The default is never.
        version
            A function that returns another value when the table has changed; it is asked before every batch, and the
            table is read again if it has.

        Raises
        ------
        CatalogError
            When the frame is streaming, cannot be read again, or has a column of a type that cannot be carried.
        """
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise CatalogError(f"'{name}' is not a valid table name", hint="use letters, digits and _, a letter first")
        if isinstance(frame, spark_host.DataFrame):
            if refresh is not None or version is not None:
                raise CatalogError(
                    f"table '{name}' is a DataFrame, which cannot be read again",
                    detail="a DataFrame remembers the files that it was made of",
                    hint="give a function, as in lambda: spark.read.parquet(path)",
                )
            first = frame
        elif callable(frame):
            first = frame()
        else:
            raise CatalogError(f"table '{name}' is not a DataFrame", detail=f"it is {frame!r}", hint="use spark.read")
        if not isinstance(first, spark_host.DataFrame) or first.isStreaming:
            raise CatalogError(f"table '{name}' is not a batch DataFrame", hint="read it with spark.read")
        schema = from_spark(first.schema, name)
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

    def without_queries(self) -> Session:
        """Returns a session of the same streams, tables and functions in which no query has a name."""
        other = copy(self)
        other.catalog = self.catalog.copy()
        other.catalog.streams = {name: each for name, each in self.catalog.streams.items() if each.query is None}
        other._streams, other._tables = dict(self._streams), dict(self._tables)
        return other

    def registered(self, name: str) -> RegisteredStream:
        """Returns a registered stream, whatever the case of its name."""
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
        """Registers a function of your own for SELECT, WHERE and ON of queries compiled from now on.

        Parameters
        ----------
        name
            Its name in queries; not one of the language's own functions.
        code
            A function of one pyarrow array per argument, which returns a pyarrow or numpy array with a value per row.
            It is sent to the workers with each batch; a function of a module must be importable there.
        returns
            The type of its values, such as `double`.
        takes
            The types of its arguments, such as `["double", "string"]`; arguments are widened to them. Without it, the
            function gets its arguments as they are.
        kind
            `arrow`, or `pandas` for series, or `scalar` for single values; the last two are slow, and raise a warning.
        nulls
            `skip`: the function does not see rows with a NULL argument, and they give NULL. `pass`: it sees them.
        version
            A text that you change with the meaning of the function. A checkpoint belongs to one version.
        never_fails
            Promises that it raises on no row; then it may be computed on rows that other conditions reject.
        deterministic
            Only True: a batch may be repeated, and a plan may ask for a value twice.

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
                hint="compute the value in the DataFrame before it is registered, from a source that keeps it",
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
        """Compiles a CQL query over the streams that are registered now.

        Parameters
        ----------
        text
            A CQL query over registered streams.
        allow_unbounded
            Allows a join over `[UNBOUNDED]` windows, whose state grows for ever.
        late_filters
            Filters that joins check instead of the source: relations, or texts of single conditions. They may be
            others after a restart. `["auto"]` places dear filters by what they cost, before the first start.

        Raises
        ------
        CqlError
            When the text is wrong; it names the place, and what was expected there or which names exist.
        """
        argument("'allow_unbounded'", allow_unbounded).flag()
        # A copy of the catalog: a stream that is registered later does not reach into a compiled query.
        stages = Explanation(text, self.catalog.copy(), allow_unbounded=allow_unbounded, late_filters=late_filters)
        return ContinuousQuery(self, CompiledQuery(stages, self.registered, dict(self._tables)))

    def console(self, port: int | None = None, host: str = LOOPBACK, token: str | None = None) -> Console:
        """Serves a page in the browser with the queries of this session, and `/metrics` for Prometheus.

        Parameters
        ----------
        port
            The port; the first free one from 4060 on if none is given.
        host
            The address to listen on; by default only this machine can reach the page.
        token
            Allows whoever knows it to change plans and move partition groups from the page. Without a token the page is
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
        """Prepares several queries to be started as one: their streams are read, partitioned and kept once.

        Parameters
        ----------
        queries
            The writer of each query, by a name for the query. Queries share a relation if they use the same alias for
            it; windows and filters may differ.

        Raises
        ------
        BundleError
            When queries cannot share their rows; it names the reason and what to do.
        """
        return Together(self, queries)


def _disorder(name: str, frame: spark_host.DataFrame, event_time: str, given: str | None) -> int | None:
    """The allowed disorder of a stream: as given, else the frame's own; None when there is neither."""
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
                hint="leave one of them out: the frame's withWatermark is used where no watermark is given",
            )
        wanted = own
    return wanted


def _same(frame: spark_host.DataFrame) -> spark_host.DataFrame:
    return frame
