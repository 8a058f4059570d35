"""A compiled query as the user sees it: its text, its stages, its plan and its writer.

Limit: explaining chooses plans as a run would, and may sample the streams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch.api.compiled import CompiledQuery
from anabranch.api.writer import ContinuousQueryWriter
from anabranch.plan.mesh import Plan
from anabranch.planning.choosing import first_plan
from anabranch.planning.explain import choice_svg
from anabranch.spark.arrow_schema import to_spark
from anabranch.spark.handle import QueryHandle
from anabranch.stats.measured import from_progress

if TYPE_CHECKING:
    from anabranch.api.session import Session
    from anabranch.spark.session import StructType


class ContinuousQuery:
    """A compiled query. It can be explained, planned and started any number of times."""

    def __init__(self, session: Session, compiled: CompiledQuery) -> None:
        self.session = session
        self.compiled = compiled

    @property
    def text(self) -> str:
        """The CQL text as submitted."""
        return self.compiled.query.text

    @property
    def schema(self) -> StructType:
        """The columns of the results, as a Spark schema."""
        return to_spark(self.compiled.query.schema)

    def printSchema(self, level: int | None = None) -> None:
        """Prints the columns of the results as a tree, as a DataFrame does."""
        print(self.schema.treeString(level or 2**31 - 1))  # noqa: T201

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name != "compiled"]

    def __repr__(self) -> str:
        columns = ", ".join(f"{field.name}: {field.dataType.simpleString()}" for field in self.schema.fields)
        return f"ContinuousQuery[{columns}]"

    def plan(self, choice: str = "auto") -> Plan:
        """Returns the plan that the query would run.

        Parameters
        ----------
        choice
            `auto`, `mjoin` (one join, no intermediate state), `tree` (two-way joins), `mesh` (routes by the values of
            rows), or a plan text over the aliases of the query, such as `((a b) c)`.

        Examples
        --------
        >>> str(query.plan("tree"))  # doctest: +SKIP
        '((a b) c)'
        """
        return first_plan(self.writeStream.plan(choice).choice())

    def explain(self, stage: str = "choice", plan: str = "auto") -> None:
        """Prints one compilation stage; see `explanation`."""
        print(self.explanation(stage, plan))  # noqa: T201

    def explanation(self, stage: str = "choice", plan: str = "auto") -> str:
        """Returns one compilation stage as text.

        Parameters
        ----------
        stage
            `logical` (as bound), `rewritten` (filters and projections pushed down), `graph` (relations and join
            predicates), `physical` (the plan and its probe orders) or `choice` (the graph, the statistics and their
            origin, the plan, and the rejected plans).
        plan
            The plan choice, for the last two. Limits, statistics and hints are set on the writer, which can also
            explain.
        """
        return self.writeStream.plan(plan).explanation(stage)

    def picture(self, plan: str = "auto") -> str:
        """Returns the plan and every considered plan by CPU and memory, as the text of an SVG file.

        Examples
        --------
        >>> Path("plan.svg").write_text(query.picture())  # doctest: +SKIP
        >>> IPython.display.SVG(query.picture())  # doctest: +SKIP
        """
        return choice_svg(self.compiled.query, self.writeStream.plan(plan).choice())

    def measured(self, handle: QueryHandle) -> dict[str, dict[str, float]]:
        """Returns the statistics measured by a run, in the form that the writer's `stats` and a spec accept.

        Empty until statistics exist, for example before two batches have moved the watermark.
        """
        return from_progress(self.compiled.query, handle.recentProgress).to_mapping()

    @property
    def writeStream(self) -> ContinuousQueryWriter:
        """A new writer, which sets the sink and the run and ends with `start()`."""
        return ContinuousQueryWriter(self)
