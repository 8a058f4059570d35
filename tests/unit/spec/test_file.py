from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest
import yaml

from anabranch.adapt.balancing import Balance
from anabranch.adapt.facts import Interval
from anabranch.adapt.policy import Periodic
from anabranch.adapt.schedule import ScheduledMove, ScheduledScale, SplitRequest
from anabranch.adapt.settings import Settings
from anabranch.cql import compile_query
from anabranch.errors import SpecError, StatisticsError
from anabranch.optimize import Objective
from anabranch.plan.mesh import parse_mesh
from anabranch.plan.slots import FEWEST, SlotRange
from anabranch.planning.choosing import decide, first_plan
from anabranch.planning.options import PlanOptions
from anabranch.run.triggers import REAL_TIME, AvailableNow, Every
from anabranch.spec.file import load, parse
from anabranch.spec.model import SinkSpec, SparkSpec, SwitchSpec
from anabranch.stats.view import Known

FOLDER = Path("/specs")
GOOD = dedent(
    """
    streams:
      s0: {format: parquet, path: data/s0, schema: "ts timestamp, k bigint, p bigint", event_time: ts,
           watermark: 5 seconds, options: {maxFilesPerTrigger: 1, recursiveFileLookup: true}}
      s1: {format: parquet, path: "s3://bucket/s1", schema: "ts timestamp, k bigint", event_time: ts}
    query: SELECT a.p FROM s0 [RANGE 10 SECONDS] AS a, s1 [RANGE 10 SECONDS] AS b WHERE a.k = b.k
    sink: {format: parquet, path: out}
    checkpoint: ckpt
    """
)


def changed(path: str, value: object) -> str:
    """The good spec with the entry at a dotted path set, or removed when the value is None."""
    document = yaml.safe_load(GOOD)
    *parents, last = path.split(".")
    place = document
    for parent in parents:
        place = place[parent]
    if value is None:
        place.pop(last, None)
    else:
        place[last] = value
    text: str = yaml.safe_dump(document)
    return text


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("ckpt", "/specs/ckpt"),
        ("../c:k", "/c:k"),
        ("/c/k", "/c/k"),
        ("file:/c/k", "file:/c/k"),
        ("s3://c/k", "s3://c/k"),
    ],
)
def test_only_what_is_no_uri_is_below_the_folder_of_the_spec(written: str, read: str) -> None:
    assert parse(changed("checkpoint", written), folder=FOLDER).checkpoint == read


def test_a_good_spec_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(GOOD + "trigger: 2 seconds\nslots: 3\nplan: ((a b) c)\nname: n\nidle_timeout: 1 minute\n")
    spec = load(file)
    first, second = spec.streams
    assert first.path == str(tmp_path / "data/s0")
    assert first.options == (("maxFilesPerTrigger", "1"), ("recursiveFileLookup", "true"))
    assert first.disorder == 5_000_000
    assert second.path == "s3://bucket/s1"
    assert second.disorder is None
    assert spec.only.sink == SinkSpec("parquet", str(tmp_path / "out"))
    assert spec.checkpoint == str(tmp_path / "ckpt")
    assert spec.trigger == Every(2_000_000)
    assert (spec.slots, spec.only.plan_options.plan, spec.name, spec.idle_timeout) == (
        SlotRange.fixed(3),
        "((a b) c)",
        "n",
        "1 minute",
    )
    assert spec.seconds_between_batches == 2.0


def test_a_trigger_may_be_real_time() -> None:
    assert parse(f"{GOOD}\ntrigger: real-time\n", folder=FOLDER).trigger == REAL_TIME


def test_late_filters_are_named_in_a_list_or_alone() -> None:
    for written in ("late_filters: [a]", "late_filters: a"):
        assert parse(f"{GOOD}\n{written}\n", folder=FOLDER).only.late_filters == ("a",)


def test_omitted_entries_have_defaults() -> None:
    spec = parse(GOOD, folder=FOLDER)
    assert spec.trigger == AvailableNow()
    assert (spec.slots, spec.only.plan_options, spec.only.allow_unbounded, spec.name) == (
        None,
        PlanOptions("auto"),
        False,
        None,
    )


def test_entries_about_plans_are_read() -> None:
    spec = parse(
        GOOD
        + dedent(
            """
            limits: {cpu: 0.5, memory: 200 MB}
            objective: rate@30 seconds
            hints: {keep: [a b], forbid: (a b | a>b)}
            stats: {rates: {s0: 20}, selectivities: {a b: 0.1}}
            """
        ),
        folder=FOLDER,
    )
    assert (spec.only.plan_options.cpu, spec.only.plan_options.memory) == (0.5, 2e8)
    assert spec.only.plan_options.objective == Objective("rate", 30.0)
    assert (spec.only.plan_options.keep, spec.only.plan_options.forbid) == (("a b",), ("(a b | a>b)",))
    assert spec.only.plan_options.given.rate("a", "s0") == Known(20.0, "given")


def test_limits_may_be_those_of_the_executors() -> None:
    plan_options = parse(f"{GOOD}\nlimits: auto\n", folder=FOLDER).only.plan_options
    assert plan_options.of_executors
    assert (plan_options.within(2.0, 1e9).cpu, plan_options.with_limits(cpu=0.5).within(2.0, 1e9).cpu) == (2.0, 0.5)
    assert PlanOptions("auto").within(2.0, 1e9) == PlanOptions("auto")


def test_a_mesh_can_be_written_out_like_any_plan() -> None:
    """It was taken from the API and refused in a spec."""
    mesh = "mesh (a: b by 0; b: a, a by (k <= 3.5 ? 0 : 1))"
    spec = parse(changed("plan", mesh), folder=FOLDER)
    assert first_plan(decide(compile_query(spec.only.query, spec.catalog()), spec.only.plan_options)) == parse_mesh(
        mesh
    )
    (switch,) = parse(changed("switch", [{"at_batch": 3, "plan": mesh}]), folder=FOLDER).only.switches
    assert switch.plan == mesh


def test_entries_about_plan_changes_are_read() -> None:
    spec = parse(changed("adapt", {"policy": "periodic", "every": "10 seconds", "freeze": True}), folder=FOLDER)
    assert spec.only.adapt == Settings(Periodic(Interval(seconds=10.0)), freeze=True)
    for on in ("true", "{}"):
        assert parse(f"{GOOD}adapt: {on}\n", folder=FOLDER).only.adapt == Settings()
    for off in (GOOD, f"{GOOD}adapt: false\n"):
        assert parse(off, folder=FOLDER).only.adapt is None
    switches = [{"at_batch": 3, "plan": "(b a)"}, {"at_batch": 5, "plan": "(a b)", "strategy": "parallel-track"}]
    assert parse(changed("switch", switches), folder=FOLDER).only.switches == (
        SwitchSpec(3, "(b a)"),
        SwitchSpec(5, "(a b)", "parallel-track"),
    )


def test_the_spark_session_is_described() -> None:
    described = {"master": "local[4]", "conf": {"spark.driver.memory": "4g", "spark.ui.enabled": True}}
    spark = parse(changed("spark", described), folder=FOLDER).spark
    assert spark == SparkSpec("local[4]", (("spark.driver.memory", "4g"), ("spark.ui.enabled", "true")))
    # What is said later, as on a command line, wins.
    assert dict(spark.with_setting("spark.driver.memory", "8g").settings)["spark.driver.memory"] == "8g"


@pytest.mark.parametrize(
    "master",
    ["local", "local[*]", "local[8]", "local[4, 2]", "local-cluster[2,1,1024]", "spark://a:7077,b:7077", "k8s://h:443",
     "yarn"],
)  # fmt: skip
def test_every_kind_of_master_is_taken(master: str) -> None:
    assert SparkSpec().with_master(master).master == master


def test_contradictory_statistics_are_refused_when_the_spec_is_read() -> None:
    with pytest.raises(StatisticsError, match=r"entry 'stats\.selectivities\.a b' is 1\.5"):
        parse(changed("stats", {"selectivities": {"a b": 1.5}}), folder=FOLDER)
    with pytest.raises(StatisticsError, match=r"entry 'stats\.rates\.s0' is -1"):
        parse(changed("stats", {"rates": {"s0": -1}}), folder=FOLDER)


def test_the_catalog_holds_the_streams() -> None:
    catalog = parse(GOOD, folder=FOLDER).catalog()
    declared = catalog.find("S0")
    assert declared is not None
    assert declared.schema.names == ("ts", "k", "p")
    assert declared.disorder == 5_000_000


def test_the_catalog_needs_schemas() -> None:
    text = changed("streams.s0", {"format": "kafka", "event_time": "timestamp", "options": {"subscribe": "topic"}})
    spec = parse(text, folder=FOLDER)
    with pytest.raises(SpecError, match=r"streams\.s0\.schema"):
        spec.catalog()
    assert replace(spec, streams=spec.streams[1:]).catalog().find("s1") is not None


@pytest.mark.parametrize(
    ("path", "value", "primary", "hint"),
    [
        ("streams", None, "entry 'streams' is missing", "streams: {s0"),
        ("streams", {}, "entry 'streams' is empty", "declare at least one"),
        ("streams", ["s0"], "entry 'streams' is a list", "entries below"),
        ("streams.s-0", {}, "entry 'streams' has a stream named 's-0'", "letters, digits and _"),
        ("query", None, "entry 'query' is missing", "SELECT"),
        ("query", 5, "entry 'query' is 5", "write a text"),
        ("sink", None, "entry 'sink' is missing", "format: parquet"),
        ("sink.path", None, "entry 'sink.path' is missing", "path: out"),
        ("checkpoint", None, "entry 'checkpoint' is missing", "folder"),
        ("chekpoint", "x", "unknown entry 'chekpoint'", "did you mean 'checkpoint'?"),
        ("budget", "x", "unknown entry 'budget'", "known here are streams"),
        ("spark", {"mster": "local"}, "unknown entry 'spark.mster'", "did you mean 'master'?"),
        ("spark", {"master": "local[0]"}, "'local[0]' is not a valid Spark master", "local[4]"),
        (
            "spark",
            {"conf": {"driver.memory": "4g"}},
            "'driver.memory' is not a setting of Spark",
            "'spark.driver.memory'?",
        ),
        ("limits", "x", "entry 'limits' is 'x'", "entries below"),
        ("limits", {"cores": 1}, "unknown entry 'limits.cores'", "known here are cpu, memory"),
        ("limits", {"cpu": 0}, "entry 'limits.cpu' is 0", "above 0, such as 0.8"),
        ("limits", {"cpu": "much"}, "entry 'limits.cpu' is 'much'", "above 0, such as 0.8"),
        ("limits", {"memory": 0}, "entry 'limits.memory' is 0", "above 0, such as 500000000"),
        ("limits", {"memory": "5 apples"}, "entry 'limits.memory' is '5 apples'", "500 MB"),
        ("objective", "speed", "unknown objective 'speed'", "rate@30 seconds"),
        ("hints", {"kep": ["a b"]}, "unknown entry 'hints.kep'", "did you mean 'keep'?"),
        ("hints", {"keep": [5]}, "entry 'hints.keep' is 5", "write a text"),
        ("streams.s0.evnt_time", "ts", "unknown entry 'streams.s0.evnt_time'", "did you mean 'event_time'?"),
        ("streams.s0.event_time", None, "entry 'streams.s0.event_time' is missing", "event_time: ts"),
        (
            "streams.s0.event_time",
            "when",
            "entry 'streams.s0.event_time': stream 's0' has no column 'when'",
            "timestamp",
        ),
        ("streams.s0.event_time", "k", "event time 'k' of stream 's0' is of type bigint", "cast it"),
        ("streams.s0.schema", None, "entry 'streams.s0.schema' is missing", "does not infer"),
        ("streams.s0.schema", "ts timestmp", "entry 'streams.s0.schema' is not a list of columns", "ts timestamp"),
        ("streams.s0.format", None, "entry 'streams.s0.format' is missing", "table: name"),
        ("streams.s0.path", None, "entry 'streams.s0.path' is missing", "data/s0"),
        ("streams.s0.table", "t", "entry 'streams.s0' has both 'table' and 'path'", "keep one"),
        ("streams.s0.max_ahead", "soon", "entry 'streams.s0.max_ahead' is 'soon'", "10 seconds"),
        ("late", {"format": "parquet"}, "entry 'late.path' is missing", "path: out"),
        ("late", "here", "entry 'late' is 'here'", "write entries below it"),
        ("tables", {"t": {"path": "t"}}, "entry 'tables.t.format' is missing", "format: parquet"),
        ("tables", {"s0": {"table": "x"}}, "entry 'tables' has a table named 's0', as a stream is", "another name"),
        ("tables", {"t": {"table": "x", "path": "t"}}, "entry 'tables.t' has both 'table' and 'path'", "keep one"),
        ("tables", {"t": {"table": "x", "refresh": "soon"}}, "entry 'tables.t.refresh'", "10 seconds"),
        ("tables", {"t": {"table": "x", "version": "files"}}, "entry 'tables.t.path'", "a query such as"),
        ("streams.s0.watermark", 5, "entry 'streams.s0.watermark' is 5", "10 seconds"),
        ("streams.s0.watermark", "5 parsecs", "entry 'streams.s0.watermark' is '5 parsecs'", "10 seconds"),
        ("streams.s0.watermark", "-1 seconds", "entry 'streams.s0.watermark' is negative", "10 seconds"),
        ("streams.s0.options", {"a": [1]}, "entry 'streams.s0.options.a' is a list", "text, a number"),
        ("trigger", "once", "entry 'trigger' is 'once'", "available_now"),
        ("trigger", 2, "entry 'trigger' is 2", "an interval such as 2 seconds"),
        ("trigger", "-2 seconds", "entry 'trigger' is negative", "0 seconds"),
        ("slots", 0, "entry 'slots' is 0", "at least 1"),
        ("slots", True, "entry 'slots' is true", "at least 1"),
        ("plan", "((a b) c", "entry 'plan' is not a plan", "mjoin"),
        ("plan", ["a", "b"], "entry 'plan' is a list", "mjoin"),
        ("queries", {"alerts": {}}, "the spec has both 'query' and 'queries'", "write 'query' below its query"),
        ("allow_unbounded", "sure", "entry 'allow_unbounded' is 'sure'", "true or false"),
        ("idle_timeout", 3, "entry 'idle_timeout' is 3", "10 seconds"),
        ("execution", "sometimes", "entry 'execution' is 'sometimes'", "semi-synchronised"),
        *(
            ("adapt", value, f"entry 'adapt' is {shown}", "write true, false, or settings such as {every: 10}")
            for value, shown in (("soon", "'soon'"), ("", "empty"), (0, "0"), (1, "1"), ([], "a list"))
        ),
        ("adapt", {"policy": "daily"}, "entry 'adapt.policy' is 'daily'", "write one of periodic"),
        ("moves", 5, "entry 'moves' is 5", "write a list such as"),
        ("moves", [{"at_batch": 1, "to": 0}], "entry 'moves.0.groups' is missing", "write for example groups: 8"),
        ("moves", [{"at_batch": 1, "split": 7, "unite": 7}], "entry 'moves.0.unite' is 7", "write two entries"),
        ("moves", [{"at_batch": 1, "split": 7, "over": 1}], "entry 'moves.0.over' is 1", "write a number of slots"),
        ("moves", [{"split": 7}], "entry 'moves.0.at_batch' is missing", "at_batch: 3"),
        ("moves", [{"at_batch": 1, "to": -1, "groups": 1}], "entry 'moves.0.to' is -1", "write the number of a slot"),
        ("moves", [{"at_batch": 1, "to": 1, "groups": ["x"]}], "entry 'moves.0.groups.0' is 'x'", "write numbers of"),
        ("moves", [{"at_batch": 1, "slots": 0}], "entry 'moves.0.slots' is 0", "at least 1"),
        ("moves", [{"at_batch": 1, "slots": 2, "to": 1}], "unknown entry 'moves.0.to'", "strategy"),
        (
            "moves",
            [{"at_batch": 1, "slots": 2, "strategy": "hope"}],
            "entry 'moves.0.strategy' is 'hope'",
            "moving-state",
        ),
        ("slots", {"least": 3, "most": 2}, "entry 'slots' has at least 3 and at most 2", "the smaller number"),
        ("slots", {"least": 3}, "entry 'slots.most' is missing", "most: 8"),
        ("slots", "few", "entry 'slots' is 'few'", "or fewest"),
        ("balance", "always", "entry 'balance' is 'always'", "off"),
        *(
            ("balance", value, f"entry 'balance' is {shown}", "write one of off, manual, auto")
            for value, shown in (("", "empty"), (0, "0"), (True, "true"), ([], "a list"))
        ),
        ("balance", {"rows": 0}, "entry 'balance.rows' is 0", "write a number of rows"),
        ("switch", 5, "entry 'switch' is 5", "write a list such as"),
        ("switch", [{"at_batch": 5}], "entry 'switch.0.plan' is missing", "write for example plan:"),
        (
            "switch",
            [{"at_batch": 5, "plan": "(a b)"}, {"at_batch": 5, "plan": "(b a)"}],
            "entry 'switch.1.at_batch' is 5, as in another entry",
            "name each batch once",
        ),
        ("switch", [{"at_batch": 5, "plan": "auto"}], "entry 'switch.0.plan' is 'auto'", "write the plan out"),
        (
            "switch",
            [{"at_batch": 5, "plan": "(a b)", "strategy": "hope"}],
            "entry 'switch.0.strategy' is 'hope'",
            "write one of auto, none",
        ),
    ],
)
def test_a_wrong_entry_is_named_with_what_to_write(path: str, value: object, primary: str, hint: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(changed(path, value), folder=FOLDER)
    assert primary in caught.value.message
    assert hint in caught.value.hint


def test_an_adapt_without_a_value_is_refused_because_it_could_mean_either() -> None:
    with pytest.raises(SpecError, match="entry 'adapt' is empty") as caught:
        parse(f"{GOOD}adapt:\n", folder=FOLDER)
    assert "write true, false, or settings" in caught.value.hint


@pytest.mark.parametrize("written", ["balance: off", "balance: false", "balance: {mode: off}"])
def test_off_may_be_written_although_yaml_reads_it_as_false(written: str) -> None:
    assert parse(f"{GOOD}{written}\n", folder=FOLDER).balance == Balance("off")


def test_tables_stand_beside_streams() -> None:
    table = {"format": "parquet", "path": "data/t", "schema": "k bigint, name string", "refresh": "10 minutes"}
    spec = parse(changed("tables", {"t": table}), folder=FOLDER)
    (found,) = spec.tables
    assert (found.name, found.path, found.refresh) == ("t", "/specs/data/t", "10 minutes")
    declared = spec.catalog().table("T")
    assert declared is not None
    assert declared.schema.names == ("k", "name")


def test_a_key_given_twice_is_refused() -> None:
    with pytest.raises(SpecError, match="entry 'checkpoint' appears twice"):
        parse(GOOD + "checkpoint: other\n", folder=FOLDER)


def test_an_empty_stream_entry_is_refused() -> None:
    with pytest.raises(SpecError, match=r"entry 'streams\.s2' is empty") as caught:
        parse(GOOD.replace("query:", "  s2:\nquery:"), folder=FOLDER)
    assert "indented further" in caught.value.hint


def test_texts_that_are_not_yaml_are_refused() -> None:
    with pytest.raises(SpecError, match="not YAML"):
        parse("streams: [", folder=FOLDER)
    with pytest.raises(SpecError, match="not YAML") as caught:
        parse(GOOD.replace("  s0:", "\ts0:"), folder=FOLDER)
    assert "at line 3, column 1" in caught.value.detail
    assert "not tabs" in caught.value.hint
    with pytest.raises(SpecError, match="the spec is empty"):
        parse("", folder=FOLDER)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no-such"):
        load(tmp_path / "no-such.yaml")


def test_moves_and_balance_are_read() -> None:
    moves = [
        {"at_batch": 3, "from": 0, "to": 1, "groups": 8},
        {"at_batch": 6, "to": 0, "groups": [1, 5], "strategy": "parallel-track"},
        {"at_batch": 9, "slots": 4},
    ]
    found = parse(changed("moves", moves), folder=FOLDER)
    assert found.moves == (
        ScheduledMove(3, 1, 8, sender=0),
        ScheduledMove(6, 0, (1, 5), strategy="parallel-track"),
        ScheduledScale(9, 4),
    )
    assert found.balance is None
    elastic = parse(changed("slots", {"most": 8}), folder=FOLDER).slots
    assert elastic == SlotRange(1, 8)
    assert parse(changed("slots", "fewest"), folder=FOLDER).slots == FEWEST
    sought = parse(changed("slots", {"least": 2, "most": 8, "fewest": True}), folder=FOLDER).slots
    assert sought == SlotRange(2, 8, is_sought=True)
    assert not sought.is_elastic
    moves = [{"at_batch": 3, "split": "ACME", "over": [0, 2], "key": "a.k"}, {"at_batch": 6, "unite": 7}]
    found = parse(changed("moves", moves), folder=FOLDER)
    assert found.moves == (SplitRequest(3, "ACME", "a.k", (0, 2)), SplitRequest(6, 7, unites=True))
    assert parse(changed("balance", "auto"), folder=FOLDER).balance == Balance("auto")
    block = {"rows": 1000}
    expected = Balance("auto", rows=1000)
    assert parse(changed("balance", block), folder=FOLDER).balance == expected


def test_an_idle_timeout_may_be_switched_off(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(GOOD + "idle_timeout: none\n")
    assert load(file).idle_timeout == "none"


def test_late_rows_and_the_future_are_read() -> None:
    spec = parse(
        changed("late", {"format": "json", "path": "aside", "options": {"compression": "gzip"}}), folder=FOLDER
    )
    assert spec.late == SinkSpec("json", "/specs/aside", options=(("compression", "gzip"),))
    assert [stream.disorder for stream in spec.streams] == [5_000_000, None]
    spec = parse(changed("streams.s1.max_ahead", "1 hour"), folder=FOLDER)
    assert [stream.max_ahead for stream in spec.streams] == [None, 3_600_000_000]
    assert spec.late is None


def test_a_stream_selects_columns_and_rows() -> None:
    document = yaml.safe_load(GOOD)
    document["streams"]["s0"] |= {
        "schema": "at timestamp, body struct<k: bigint, p: bigint>",
        "select": {"ts": "at", "k": "body.k", "p": "body.p"},
        "columns": "ts timestamp, k bigint, p bigint",
        "where": "body.k > 0",
    }
    spec = parse(yaml.safe_dump(document), folder=FOLDER)
    stream = spec.streams[0]
    assert dict(stream.select) == {"ts": "at", "k": "body.k", "p": "body.p"}
    assert stream.where == "body.k > 0"
    assert compile_query(spec.only.query, spec.catalog()).graph.names == ("a", "b")
    assert not spec.has_all_columns
    assert parse(GOOD, folder=FOLDER).has_all_columns


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"select": {"k": "k"}}, "'ts', which is not in 'select'"),
        ({"select": {}}, "is empty"),
        ({"select": {"a b": "k", "ts": "ts"}}, "has a column named 'a b'"),
        ({"select": {"ts": 5}}, "'streams.s0.select.ts' is 5"),
        ({"columns": "ts timestamp"}, "stands without 'select'"),
        ({"select": {"ts": "ts"}, "columns": "ts timestamp, k bigint"}, "has ts, k"),
        ({"where": []}, "is a list"),
    ],
)
def test_wrong_columns_of_a_stream_are_named(entries: dict[str, object], words: str) -> None:
    document = yaml.safe_load(GOOD)
    document["streams"]["s0"] |= entries
    with pytest.raises(SpecError, match=words) as refused:
        parse(yaml.safe_dump(document), folder=FOLDER)
    assert refused.value.hint


def test_selected_columns_without_types_need_a_sample_to_be_explained() -> None:
    document = yaml.safe_load(GOOD)
    document["streams"]["s0"]["select"] = {"ts": "ts", "k": "k", "p": "p"}
    with pytest.raises(SpecError, match=r"'streams\.s0\.columns' is missing") as refused:
        parse(yaml.safe_dump(document), folder=FOLDER).catalog()
    assert "--sample" in refused.value.hint
