"""Delta and Iceberg tables without Spark: layouts that do not fit are refused, and nothing is lost or there twice."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from moto.server import ThreadedMotoServer
from pyarrow import fs, parquet

from anabranch.errors import SinkError, SpecError
from anabranch.lang.schema import TIMESTAMP, Field, Schema
from anabranch.run.sink_settings import IcebergTarget, SinkSettings, check_sink
from anabranch.spark import delta as delta_module
from anabranch.spark.sinks import iceberg as iceberg_module
from anabranch.spark.sinks.delta import DeltaLakeTable
from anabranch.spark.sinks.iceberg import IcebergLakeTable
from anabranch.spark.sinks.lake import LakeSink, LakeTable
from anabranch.spark.sinks.sink import Batch
from anabranch.spark.sinks.worker_files import ParquetFiles, WorkerFileSink

deltalake = pytest.importorskip("deltalake", reason="the extra 'delta' is not installed")
pytest.importorskip("pyiceberg", reason="the extra 'iceberg' is not installed")

SCHEMA = Schema(
    (
        Field("k", pa.int64()),
        Field("v", pa.string()),
        Field("day", pa.date32()),
        Field("at", TIMESTAMP),
        Field("n", pa.int8()),
        Field("price", pa.decimal128(10, 2)),
    )
)
QUERY = "0badcafe-1111"
Make = Callable[..., LakeTable]


def catalog(folder: Path | str, database: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{database}/catalog.db", "warehouse": str(folder)}


def delta_at(folder: Path, schema: Schema = SCHEMA, partition_by: tuple[str, ...] = ()) -> LakeTable:
    return DeltaLakeTable(str(folder / "table"), schema, partition_by)


def iceberg_at(folder: Path, schema: Schema = SCHEMA, partition_by: tuple[str, ...] = ()) -> LakeTable:
    target = IcebergTarget("db.table", "default", catalog(f"file://{folder}", folder))
    return IcebergLakeTable(target, schema, partition_by)


def rows(*keys: int | None, v: str | None = "a") -> pa.RecordBatch:
    day = datetime.date(2026, 1, 5)
    at = datetime.datetime(2026, 1, 5, 10, 0, 0, 123456, tzinfo=datetime.UTC)
    columns = {"k": keys, "v": [v] * len(keys), "day": [day] * len(keys), "at": [at] * len(keys), "n": [1] * len(keys)}
    columns["price"] = [None] * len(keys)
    return pa.RecordBatch.from_pydict({name: list(values) for name, values in columns.items()}, SCHEMA.to_arrow())


def write(sink: LakeSink, number: int, *batches: pa.RecordBatch, query: str = QUERY) -> None:
    """Writes a batch as two workers would."""
    batch = Batch(number, query)
    staged = sink.stage(batch)
    for part, each in enumerate(batches):
        with staged.open(f"{part:05d}") as results:
            results.write(each)
    sink.publish(batch)


def sink_of(table: LakeTable) -> LakeSink:
    return LakeSink(table, ParquetFiles("snappy"))


def read(table: Any) -> pa.Table:
    if isinstance(table, DeltaLakeTable):
        return deltalake.DeltaTable(table.open()).to_pyarrow_table()
    table._table.refresh()
    return table._table.scan().to_arrow()


def keys(table: Any) -> list[Any]:
    return sorted(read(table).column("k").to_pylist(), key=str)


@pytest.fixture(params=[delta_at, iceberg_at], ids=["delta", "iceberg"])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


def test_a_batch_is_there_once_whichever_attempt_ended(make: Make, tmp_path: Path) -> None:
    table = make(tmp_path)
    write(sink_of(table), 0, rows(1, 2), rows(3))
    write(sink_of(make(tmp_path)), 1, rows(4))
    write(sink_of(make(tmp_path)), 1, rows(4, 5), rows(6))  # another attempt may have other rows: clocks differ
    assert keys(table) == [1, 2, 3, 4, 5, 6]
    write(sink_of(make(tmp_path)), 1)
    assert keys(table) == [1, 2, 3]
    write(sink_of(table), 2, rows(7), query="another query")
    assert keys(table) == [1, 2, 3, 7]


def test_files_that_no_commit_names_are_removed_with_the_next_attempt(make: Make, tmp_path: Path) -> None:
    table = make(tmp_path)
    sink, batch = sink_of(table), Batch(0, QUERY)
    with sink.stage(batch).open("00000") as results:
        results.write(rows(1))
    sink.folder.move(0, QUERY)  # the driver dies here
    assert len(list(tmp_path.rglob("part-000000000-*"))) == 1
    write(sink_of(make(tmp_path)), 0, rows(1))
    assert len(list(tmp_path.rglob("part-000000000-*"))) == 1
    assert keys(table) == [1]


def test_a_checkpoint_that_is_older_than_the_table_is_refused(make: Make, tmp_path: Path) -> None:
    table = make(tmp_path)
    for number in range(3):
        write(sink_of(table), number, rows(number))
    with pytest.raises(SinkError, match="has batch 2 of this query, and the checkpoint continues with 1"):
        write(sink_of(make(tmp_path)), 1, rows(1))
    assert keys(table) == [0, 1, 2]


def test_a_batch_that_was_compacted_is_not_added_again(tmp_path: Path) -> None:
    table = delta_at(tmp_path)
    write(sink_of(table), 0, rows(1))
    write(sink_of(table), 1, rows(2), rows(3))
    deltalake.DeltaTable(table.open()).optimize.compact()
    with pytest.raises(SinkError, match=r"batch 1 of 'delta' at '.*' cannot be replaced") as refused:
        write(sink_of(delta_at(tmp_path)), 1, rows(2), rows(3))
    assert "0 of its 2 files" in refused.value.detail
    assert keys(table) == [1, 2, 3]
    write(sink_of(table), 2, rows(4))
    assert keys(table) == [1, 2, 3, 4]


def test_another_writer_may_append_between_two_batches(make: Make, tmp_path: Path) -> None:
    first, second = make(tmp_path), make(tmp_path)
    write(sink_of(first), 0, rows(1))
    write(sink_of(second), 0, rows(2), query="another")
    write(sink_of(first), 1, rows(3))
    assert keys(second) == [1, 2, 3]


def test_a_commit_that_fails_loses_nothing(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make(tmp_path)
    write(sink_of(table), 0, rows(1))
    real = table.commit
    for lands in (False, True):  # a timeout does not tell whether the commit is there

        def lost(*arguments: Any, lands: bool = lands) -> None:
            if lands:
                real(*arguments)
            raise OSError("503 SlowDown")

        monkeypatch.setattr(table, "commit", lost)
        with pytest.raises(OSError, match="SlowDown"):
            write(sink_of(table), 1, rows(2))
    assert keys(table) == [1, 2]
    write(sink_of(make(tmp_path)), 1, rows(2))
    assert keys(table) == [1, 2]


@pytest.mark.parametrize("columns", [("v",), ("k", "v", "day"), ("k",)])
def test_partitions_hold_every_value(make: Make, tmp_path: Path, columns: tuple[str, ...]) -> None:
    table = make(tmp_path, SCHEMA, columns)
    texts = ["a", "b/c=d%20 e", None, "ä:?"]
    parts = [pa.Table.from_batches([rows(number, None, v=text)]) for number, text in enumerate(texts)]
    (batch,) = pa.concat_tables(parts).combine_chunks().to_batches()
    write(sink_of(table), 0, batch)
    write(sink_of(make(tmp_path, SCHEMA, columns)), 0, batch)  # replaced
    found = read(table).select(SCHEMA.names).cast(SCHEMA.to_arrow())
    assert sorted(map(str, found.to_pylist())) == sorted(map(str, batch.to_pylist()))


def test_duckdb_reads_what_delta_holds_and_statistics_prune(tmp_path: Path) -> None:
    table = delta_at(tmp_path)
    for number in range(3):
        write(sink_of(table), number, rows(10 * number, 10 * number + 1))
    stored = deltalake.DeltaTable(table.open())
    actions = sorted(pa.table(stored.get_add_actions(flatten=True)).to_pylist(), key=lambda each: each["min.k"])
    assert [(each["min.k"], each["max.k"], each["num_records"]) for each in actions] == [
        (0, 1, 2),
        (10, 11, 2),
        (20, 21, 2),
    ]
    dataset, connection = stored.to_pyarrow_dataset(), duckdb.connect()
    assert len(dataset.schema) == len(SCHEMA)
    assert connection.execute("SELECT COUNT(*), SUM(k) FROM dataset WHERE k >= 10").fetchall() == [(4, 62)]
    instant = "TIMESTAMPTZ '2026-01-05 10:00:00.123456+00'"
    assert connection.execute(f'SELECT COUNT(*) FROM dataset WHERE "at" = {instant}').fetchall() == [(6,)]


def test_a_table_of_another_layout_is_refused(make: Make, tmp_path: Path) -> None:
    make(tmp_path).open()
    more = Schema((*SCHEMA.fields, Field("more", pa.int64())))
    with pytest.raises(SinkError, match="has other columns than the query"):
        make(tmp_path, more)
    text = Schema((Field("k", pa.string()), *SCHEMA.fields[1:]))
    with pytest.raises(SinkError, match=r"column 'k' of .* has another type than in the query"):
        make(tmp_path, text)
    with pytest.raises(SinkError, match="has other partition"):
        make(tmp_path, SCHEMA, ("v",))


def test_rules_of_a_delta_table_that_workers_do_not_apply_are_refused(tmp_path: Path) -> None:
    stored = deltalake.DeltaTable.create(str(tmp_path / "table"), SCHEMA.to_arrow())
    stored.alter.add_constraint({"positive": "k > 0"})
    with pytest.raises(SinkError, match="rules on its columns") as refused:
        delta_at(tmp_path)
    assert "delta.constraints.positive" in refused.value.detail
    strict = pa.schema([pa.field(each.name, each.type, each.name != "k") for each in SCHEMA])
    deltalake.DeltaTable.create(str(tmp_path / "strict" / "table"), strict)
    with pytest.raises(SinkError, match="rules on its columns"):
        delta_at(tmp_path / "strict")


def test_a_folder_of_plain_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "part-0.parquet").write_bytes(b"")
    with pytest.raises(SinkError, match="has files and is not a Delta table"):
        delta_at(tmp_path)


def test_a_catalog_that_cannot_be_reached_is_named_without_its_password(tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/no/such/folder.db", "password": "hunter2"}
    with pytest.raises(SinkError, match=r"table 'iceberg' at 'db\.t' cannot be opened") as refused:
        IcebergLakeTable(IcebergTarget("db.t", "default", properties), SCHEMA, ())
    assert "hunter2" not in str(refused.value)


def test_a_log_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    write(sink_of(delta_at(tmp_path)), 0, rows(1))
    (tmp_path / "table" / "_delta_log" / f"{0:020d}.json").write_text("{half")
    with pytest.raises(SinkError, match=r"table 'delta' at '.*' cannot be opened"):
        delta_at(tmp_path)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_module, "is_installed", False)
    monkeypatch.setattr(iceberg_module, "is_installed", False)
    for make, extra in ((delta_at, "delta"), (iceberg_at, "iceberg")):
        with pytest.raises(SpecError, match=f"format '{extra}' needs the package") as refused:
            make(tmp_path)
        assert f"pip install '.[{extra}]'" in refused.value.hint


@pytest.mark.parametrize(
    ("sink", "words"),
    [
        (SinkSettings("delta"), "the 'delta' sink has no path"),
        (SinkSettings("delta", "p", {"mergeSchema": "true"}), "has no option 'mergeSchema'"),
        (SinkSettings("delta", "p", {"compression": "rar"}), "'rar' is not a compression"),
        (SinkSettings("delta", "p", {}, ("at",)), "partition column 'at' is of type timestamp"),
        (SinkSettings("iceberg"), "the 'iceberg' sink has no table"),
        (SinkSettings("iceberg", None, {"table": "results"}), "'results' is not the name of an Iceberg table"),
    ],
)
def test_settings_are_checked_without_the_libraries(sink: SinkSettings, words: str) -> None:
    with pytest.raises(SpecError, match=words) as refused:
        check_sink(sink, SCHEMA)
    assert refused.value.hint


@pytest.mark.parametrize("kind", [pa.duration("us"), pa.null()], ids=str)
@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_types_that_no_table_has_are_refused(format: str, kind: pa.DataType) -> None:
    sink = SinkSettings(format, "db.t")
    with pytest.raises(SpecError, match="column 'x' is of type"):
        check_sink(sink, Schema((Field("x", kind),)))


# --- on S3 ------------------------------------------------------------------------------------------------------------


class Weak:
    """Passes requests to an application, and refuses or breaks those that `faults` still holds."""

    def __init__(self, application: Any) -> None:
        self.application = application
        self.faults: list[str] = []
        self.refused = 0

    def __call__(self, environ: Any, start_response: Any) -> Any:
        if (self.faults and "part-" in environ["PATH_INFO"]) or (self.faults and "_delta_log" in environ["PATH_INFO"]):
            self.refused += 1
            start_response(self.faults.pop(), [("Content-Type", "application/xml")])
            return [b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"]
        return self.application(environ, start_response)


@pytest.fixture(scope="module")
def storage() -> Iterator[tuple[Weak, str]]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    running: Any = server._server
    weak = Weak(running.app)
    running.app = weak
    yield weak, f"127.0.0.1:{server.get_host_and_port()[1]}"
    server.stop()


@pytest.fixture
def bucket(storage: tuple[Weak, str], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    _, server = storage
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ENDPOINT_URL": f"http://{server}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    options = {"endpoint_override": server, "scheme": "http", "region": "us-east-1"}
    fs.S3FileSystem(allow_bucket_creation=True, **options).create_dir("lake")
    return f"s3://lake/{abs(hash(request.node.name))}"


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_delta_on_s3_survives_refused_requests(bucket: str, scheme: str, storage: tuple[Weak, str]) -> None:
    weak, _ = storage
    path = scheme + bucket.removeprefix("s3") + "/table"
    sink = sink_of(DeltaLakeTable(path, SCHEMA, ("v",)))
    write(sink, 0, rows(1), rows(2, v="b"))
    weak.faults, weak.refused = ["503 Slow Down", "429 Too Many Requests", "500 Internal Server Error"], 0
    write(sink, 1, rows(3))
    assert weak.refused == 3
    write(sink_of(DeltaLakeTable(path, SCHEMA, ("v",))), 1, rows(3), rows(4))
    stored = deltalake.DeltaTable(bucket + "/table")
    assert sorted(stored.to_pyarrow_table().column("k").to_pylist()) == [1, 2, 3, 4]


def test_files_on_s3_survive_refused_requests(bucket: str, storage: tuple[Weak, str]) -> None:
    weak, _ = storage
    sink = WorkerFileSink(bucket, ParquetFiles("snappy"))
    weak.faults, weak.refused = ["503 Slow Down", "429 Too Many Requests", "500 Internal Server Error"], 0
    for keys in ([1, 2], [3]):
        with sink.stage(Batch(0, QUERY)).open("00000") as results:
            results.write(rows(*keys))
        sink.publish(Batch(0, QUERY))
    assert weak.refused == 3
    files, root = fs.FileSystem.from_uri(bucket)
    assert parquet.read_table(root, filesystem=files).column("k").to_pylist() == [3]


def test_iceberg_on_s3(bucket: str, storage: tuple[Weak, str], tmp_path: Path) -> None:
    weak, server = storage
    properties = {**catalog(bucket, tmp_path), "s3.endpoint": f"http://{server}", "s3.region": "us-east-1"}
    table = IcebergLakeTable(IcebergTarget("db.t", "default", properties), SCHEMA, ("day",))
    sink = sink_of(table)
    write(sink, 0, rows(1), rows(2))
    weak.faults, weak.refused = ["503 Slow Down", "429 Too Many Requests"], 0
    write(sink, 1, rows(3))
    assert weak.refused == 2
    assert keys(table) == [1, 2, 3]
