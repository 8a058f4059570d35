"""Scenarios like the streams of users, against Spark's own joins: texts, hot keys, wide rows, many streams, a band."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from benchmarks.against import Scenario, against
from benchmarks.bench import Bench
from benchmarks.figures import Figure
from benchmarks.stored_streams import stored
from benchmarks.user_workloads import auctions, band, many, wide
from benchmarks.workloads import Form

MANY = 12
ROADS: dict[Form, str] = {
    "parquet": "local Parquet files, which tasks read",
    "json": "local JSON lines",
    "arrow": "a Python data source of Arrow batches, which only Spark can read",
}
"""By form of the source, the road that rows take."""
LEAST: dict[Form, tuple[float, float]] = {"parquet": (4.0, 5.5), "json": (4.0, 4.5), "arrow": (3.5, 3.5)}
"""Rows a second over Spark's own joins that are to be reached, with two relations and with three."""

LEAST_S3 = (3.5, 4.5)
"""The same over the road of S3."""


def auctions_small(bench: Bench, relations: int) -> list[Figure]:
    sizes = bench.sizes
    workload = auctions(relations, sizes.user_rows, sizes.user_batches)
    least = 3.5 if relations < 4 else None
    return against(bench, workload, f"auctions, {relations} relations", least, most_cpu=0.3)


def auctions_large(bench: Bench, relations: int) -> list[Figure]:
    workload = auctions(relations, bench.sizes.user_rows, bench.sizes.user_few_batches)
    return against(bench, workload, f"auctions, {relations} relations, large batches", None)


def road(bench: Bench, relations: int, form: Form) -> list[Figure]:
    """The same rows over one road, with the same JVM options on both sides and no patches."""
    workload = replace(auctions(relations, bench.sizes.user_rows, bench.sizes.user_batches), form=form)
    label = f"auctions, {relations} relations, {form}"
    return against(bench, workload, label, LEAST[form][relations - 2], "native-our-jvm")


def road_s3(bench: Bench, relations: int) -> list[Figure]:
    """Our side reads Parquet files from an S3 server on loopback, and Spark's joins the same files from the disk."""
    workload = auctions(relations, bench.sizes.user_rows, bench.sizes.user_batches)
    with stored(workload):
        least = LEAST_S3[relations - 2]
        return against(bench, workload, f"auctions, {relations} relations, s3", least, "native-our-jvm", ours="ours-s3")


def text_keys(bench: Bench) -> list[Figure]:
    workload = auctions(3, bench.sizes.user_rows, bench.sizes.user_batches, text_keys=True)
    return against(bench, workload, "auctions with text keys, 3 relations", None)


def wide_rows(bench: Bench) -> list[Figure]:
    workload = wide(bench.sizes.user_rows // 5, bench.sizes.user_batches)
    return against(bench, workload, "rows of 1 kB", None)


def many_streams(bench: Bench) -> list[Figure]:
    """Spark needs eleven joins with two states each; a twentieth of the rows keeps its side within minutes."""
    workload = many(MANY, bench.sizes.user_rows // 20, bench.sizes.user_few_batches)
    return against(bench, workload, f"{MANY} streams", None)


def band_join(bench: Bench) -> list[Figure]:
    workload = band(bench.sizes.user_rows // 5, bench.sizes.user_batches)
    return against(bench, workload, "a band", None)


SCENARIOS = (
    *(
        Scenario(
            f"auctions-{n}",
            f"persons, auctions and bids: texts and hot keys, {n} relations",
            partial(auctions_small, relations=n),
        )
        for n in (2, 3, 4)
    ),
    *(
        Scenario(
            f"auctions-{n}-large", f"{n} relations of them in few large batches", partial(auctions_large, relations=n)
        )
        for n in (2, 3, 4)
    ),
    *(
        Scenario(f"road-{form}-{n}", f"{n} relations of them from {what}", partial(road, relations=n, form=form))
        for form, what in ROADS.items()
        for n in (2, 3)
    ),
    *(
        Scenario(f"road-s3-{n}", f"{n} relations of them from an S3 server on loopback", partial(road_s3, relations=n))
        for n in (2, 3)
    ),
    Scenario("text-keys", "persons, auctions and bids by keys that are texts", text_keys),
    Scenario("wide-rows", "two streams of rows of 1 kB", wide_rows),
    Scenario("many-streams", f"{MANY} streams on one key", many_streams),
    Scenario("band", "two streams by a band of values within few keys", band_join),
)
