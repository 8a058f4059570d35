"""A session: streams by name inside one Spark session, and the queries over them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

from anabranch.api.compiled import CompiledQuery, RegisteredStream
from anabranch.api.query import ContinuousQuery
from anabranch.api.together import Together
from anabranch.api.writer import ContinuousQueryWriter
from anabranch.catalog import Catalog, StreamDeclaration
from anabranch.console.runs import LiveRun
from anabranch.console.server import LOOPBACK, Console
from anabranch.entries import argument
from anabranch.errors import CatalogError
from anabranch.explain import Explanation
from anabranch.host.spark import session as spark_host
from anabranch.host.spark.arrow_schema import from_spark
from anabranch.host.spark.handle import ContinuousQueries
from anabranch.host.spark.sample import StreamSample
from anabranch.host.spark.warming import warm_workers

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
        self.spark = spark
        self.catalog = Catalog()
        self.streams = ContinuousQueries(spark)
        self._streams: dict[str, RegisteredStream] = {}
        warm_workers(spark)

    def register(
        self,
        name: str,
        frame: spark_host.DataFrame,
        event_time: str,
        watermark: str = "0 seconds",
        idle_timeout: str | None = None,
        sample: spark_host.DataFrame | Callable[[], StreamSample | None] | None = None,
    ) -> None:
        """Registers a streaming DataFrame under a name, or replaces the stream of that name.

        Parameters
        ----------
        name
            The name of the stream in queries: letters, digits and `_`; case does not matter.
        frame
            A streaming DataFrame, from `spark.readStream`.
        event_time
            The timestamp column that says when a row happened.
        watermark
            How far a row may lag behind the newest row of its stream; later rows are dropped and counted.
        idle_timeout
            A stream without rows for this long no longer holds the others back; `none` to wait for ever. The default is
            the writer's `idleTimeout`, else 10 minutes.
        sample
            Some rows of the stream as a batch DataFrame of the same columns, such as its first files read with
            `spark.read`, or a function that returns them when they are needed. Plans are then chosen by statistics of
            these rows. The whole sample is read, once for all queries of a run.

        Raises
        ------
        CatalogError
            When the frame is not streaming, lacks the column, or has a column of a type that cannot be carried.
        """
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise CatalogError(f"'{name}' is not a valid stream name", hint="use letters, digits and _, a letter first")
        if not isinstance(frame, spark_host.DataFrame):
            raise CatalogError(
                f"stream '{name}' is not a DataFrame", detail=f"it is {frame!r}", hint="read it with spark.readStream"
            )
        argument(f"the event time of stream '{name}'", event_time, CatalogError).text("name a timestamp column")
        if not frame.isStreaming:
            raise CatalogError(
                f"stream '{name}' is a batch DataFrame", hint="read it with spark.readStream instead of spark.read"
            )
        schema = from_spark(frame.schema, name)
        column = schema.find(event_time)
        declaration = StreamDeclaration(
            name,
            schema,
            event_time if column is None else column.name,
            argument(f"the watermark of stream '{name}'", watermark, CatalogError).duration(),
        )
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
        self._streams[name.lower()] = RegisteredStream(declaration, frame, idle_timeout, sample)

    def registered(self, name: str) -> RegisteredStream:
        """Returns a registered stream, whatever the case of its name."""
        return self._streams[name.lower()]

    def sql(self, text: str, allow_unbounded: bool = False, late_filters: Sequence[str] = ()) -> ContinuousQuery:
        """Compiles a CQL query over the streams that are registered now.

        Parameters
        ----------
        text
            A CQL query over registered streams.
        allow_unbounded
            Allows a join over `[UNBOUNDED]` windows, whose state grows for ever.
        late_filters
            Filters that joins check instead of the source: relations, or texts of single conditions. A checkpoint
            fits only the filters that it was written with.

        Raises
        ------
        CqlError
            When the text is wrong; it names the place, and what was expected there or which names exist.
        """
        # A copy of the catalog: a stream that is registered later does not reach into a compiled query.
        catalog = Catalog(dict(self.catalog.streams))
        stages = Explanation(text, catalog, allow_unbounded=allow_unbounded, late_filters=late_filters)
        return ContinuousQuery(self, CompiledQuery(stages, self.registered))

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
