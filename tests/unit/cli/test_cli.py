from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import dedent
from typing import Any
from xml.etree import ElementTree

import pytest

from anabranch.calibrate import engine_costs as calibrate
from anabranch.calibrate import spark_costs
from anabranch.cli import doctor
from anabranch.cli import main as cli
from anabranch.cli.doctor import Finding
from anabranch.cost.host import SPARK
from anabranch.cost.units import ENGINE
from anabranch.cql import compile_query
from anabranch.errors import HostError
from anabranch.plan.mesh import parse_plan
from anabranch.planning.calibration import calibrated_host
from anabranch.run.local import LocalHost
from anabranch.settings.commands import USER_ERROR, replace_text, require_writable
from anabranch.spark.quiet import VERBOSE
from anabranch.spec import run_command
from anabranch.spec.file import load
from anabranch.telemetry.logs import LOG

EXAMPLES = Path(__file__).parents[3] / "examples"
PLACED = [str(EXAMPLES / "network.yaml"), str(EXAMPLES / "airline-queries.yaml")]
SPEC = dedent(
    """
    streams:
      s0: {format: parquet, path: data/s0, schema: "ts timestamp, k bigint, p bigint", event_time: ts}
      s1: {format: parquet, path: data/s1, schema: "ts timestamp, k bigint, p bigint", event_time: ts}
      s2: {format: parquet, path: data/s2, schema: "ts timestamp, k bigint, p bigint", event_time: ts}
    query: |
      SELECT a.p AS p0, b.p AS p1 FROM s0 [RANGE 10 SECONDS] AS a, s1 [RANGE 10 SECONDS] AS b, s2 [RANGE 5 SECONDS] AS c
      WHERE a.k = b.k AND b.k = c.k AND a.p > 3
    sink: {format: parquet, path: out}
    checkpoint: ckpt
    """
)


SITES = ("networkx", "scipy", "sklearn", "threadpoolctl", "matplotlib")
"""The packages of the extra `sites`."""
OTHERS = ("duckdb", "openlineage", "prometheus_client", "redis", "starlette", "uvicorn")
"""The packages of other extras."""


@pytest.fixture
def spec_file(tmp_path: Path) -> Path:
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC)
    return file


def test_explain_prints_the_plan(spec_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", str(spec_file)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("relation a = s0 [RANGE 10 SECONDS] WHERE")
    assert "rate of a" in shown
    assert "\nplan (a b c |" in shown
    assert "considered\n  plan" in shown


@pytest.mark.parametrize(
    ("stage", "part"),
    [
        ("logical", "Join"),
        ("rewritten", "Filter"),
        ("graph", "key k0: a.k = b.k = c.k"),
        ("physical", "on a.k = b.k = c.k"),
    ],
)
def test_every_stage_can_be_seen(spec_file: Path, stage: str, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", str(spec_file), "--stage", stage]) == 0
    assert part in capsys.readouterr().out


def test_the_command_line_wins_over_the_spec(spec_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", str(spec_file), "--plan", "((a c) b)"]) == 0
    assert "\nplan ((a c) b)\nbecause it was requested\n" in capsys.readouterr().out


def test_explain_finds_the_fewest_slots_that_keep_the_limits(
    spec_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec_file.write_text(SPEC + "stats: {rates: {s0: 20000, s1: 20000, s2: 20000}}\nslots: fewest\n")
    assert cli.main(["explain", str(spec_file), "--cpu", "4"]) == 0
    assert "1 slots are the fewest that keep the limits" in capsys.readouterr().out
    assert cli.main(["explain", str(spec_file), "--memory", "150 MB"]) == 0
    shown = capsys.readouterr().out
    (line,) = (line for line in shown.splitlines() if "are the fewest" in line)
    slots = int(line.split()[0])
    assert slots > 1
    assert f"with {slots - 1}, " in line
    assert f"slots {slots}, " in shown
    assert cli.main(["explain", str(spec_file), "--slots", str(slots - 1), "--memory", "150 MB"]) == USER_ERROR
    assert cli.main(["explain", str(spec_file)]) == USER_ERROR
    assert "there are no limits" in capsys.readouterr().err


def test_explain_says_that_it_does_not_know_the_executors(spec_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec_file.write_text(f"{spec_file.read_text()}\nlimits: auto\n")
    assert cli.main(["explain", str(spec_file)]) == 0
    assert "without --sample no limits apply" in capsys.readouterr().err


def test_explain_draws_the_plan(spec_file: Path, tmp_path: Path) -> None:
    picture = tmp_path / "plan.svg"
    assert cli.main(["explain", str(spec_file), "--plan", "tree", "--picture", str(picture)]) == 0
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")


def test_explain_draws_every_plan_that_was_considered(spec_file: Path, tmp_path: Path) -> None:
    picture = tmp_path / "plan.svg"
    assert cli.main(["explain", str(spec_file), "--cpu", "0.5", "--memory", "1 GB", "--picture", str(picture)]) == 0
    drawn = picture.read_text()
    assert "limit" in drawn
    assert "rows/s" in drawn
    assert "plans by what they need" in drawn
    assert drawn.count("stroke-dasharray") == 2


def test_the_rows_of_a_table_do_not_arrive(tmp_path: Path) -> None:
    """A table had 1e-05 rows/s."""
    streams = "{s: {format: parquet, path: s, schema: 'ts timestamp, k bigint', event_time: ts}}"
    (tmp_path / "spec.yaml").write_text(
        f"streams: {streams}\ntables: {{t: {{format: parquet, path: t, schema: 'k bigint, name string'}}}}\n"
        "query: SELECT a.k, t.name FROM s [RANGE 1 MINUTE] AS a, t WHERE a.k = t.k\n"
        "sink: {format: parquet, path: out}\ncheckpoint: ckpt\n"
    )
    picture = tmp_path / "plan.svg"
    assert cli.main(["explain", str(tmp_path / "spec.yaml"), "--picture", str(picture)]) == 0
    drawn = picture.read_text()
    assert "state 10,000 rows" in drawn
    assert "e-0" not in drawn.split("by what they need")[0]


def test_explain_draws_the_plans_of_queries_that_run_together(spec_file: Path, tmp_path: Path) -> None:
    streams, _, rest = SPEC.partition("query: |")
    query, _, _ = rest.partition("sink:")
    several = [
        f"  q{i}: {{query: '{' '.join(query.split())}', sink: {{format: parquet, path: out{i}}}}}" for i in (0, 1)
    ]
    spec_file.write_text("\n".join([streams, "checkpoint: ckpt", "share: auto", "queries:", *several, ""]))
    picture = tmp_path / "plans.svg"
    assert cli.main(["explain", str(spec_file), "--picture", str(picture)]) == 0
    drawn = picture.read_text()
    assert "q0: plan" in drawn
    assert "q1: plan" in drawn
    assert "shared" in drawn
    assert "once for q0, q1" in drawn


def test_a_calibration_is_kept_and_used(
    spec_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(calibrate, "calibrate", lambda seed: replace(ENGINE, probe=1e-6))
    seen = replace(SPARK, trigger=0.77)
    monkeypatch.setattr(spark_costs, "measure_spark", lambda units, seed: seen)
    assert cli.main(["calibrate"]) == 0
    shown = capsys.readouterr()
    for line in ("probe", "770.0 ms"):
        assert line in shown.out
    assert str(tmp_path / "cache" / "anabranch") in shown.err
    assert calibrated_host() == seen
    assert cli.main(["explain", str(spec_file)]) == 0
    assert "unit costs calibrated on this machine" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.xdist_group("drivers of their own")
def test_a_calibration_measures_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(calibrate, "calibrate", lambda seed: ENGINE)
    assert cli.main(["calibrate"]) == 0
    assert calibrated_host() is not None


@dataclass(frozen=True)
class Done:
    """What a command returned and printed."""

    code: int
    out: str
    err: str


def run_without(*packages: str, commands: Sequence[Sequence[str]]) -> list[Done]:
    """Runs commands one after another in a process that lacks some packages, and Java."""
    program = f"""
import contextlib, io, json, sys
sys.modules.update(dict.fromkeys({packages}))
from anabranch.cli.main import main
found = []
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    found.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(found))
"""
    bare = {"PATH": "", "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", program, json.dumps(commands)]
    done = subprocess.run(command, env=bare, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [Done(*each) for each in json.loads(done.stdout)]


def test_explain_needs_no_extra_and_no_java() -> None:
    commands = [["explain", str(EXAMPLES / "orders.yaml")]]
    (done,) = run_without("pyspark", "pandas", *SITES, *OTHERS, commands=commands)
    assert done.code == 0, done.err
    assert "\nplan (" in done.out


def test_a_reader_of_the_output_that_goes_away_ends_the_command_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "anabranch", "explain", str(EXAMPLES / "orders.yaml")]
    done = subprocess.run(command, check=False, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_everything_but_sites_is_imported_without_their_extra() -> None:
    program = f"""
import pkgutil, sys
sys.modules.update(dict.fromkeys({SITES}))
import anabranch
outside = ("anabranch.place", "anabranch.sites", "anabranch.__main__")
for module in pkgutil.iter_modules(anabranch.__path__, "anabranch."):
    if module.name not in outside:
        __import__(module.name)
        path = getattr(sys.modules[module.name], "__path__", ())
        for inner in pkgutil.walk_packages(path, f"{{module.name}}."):
            if inner.name != "anabranch.spark.daemon":
                __import__(inner.name)
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_commands_that_need_spark_name_it(spec_file: Path) -> None:
    spec = str(spec_file)
    several = run_without("pyspark", commands=[["run", spec], ["explain", spec, "--sample"], ["prepare"]])
    assert [done.code for done in several] == [USER_ERROR] * 3
    assert all("error: pyspark is not installed" in done.err for done in several)


def test_commands_of_sites_name_their_extra() -> None:
    commands = [["place", *PLACED], ["deploy", "status", "--root", "nowhere"], ["site", "hub", "--root", "nowhere"]]
    expected = (
        f"error: planning over sites needs packages that are not installed: {', '.join(SITES)}\n"
        "  hint: in a clone of the repository: pip install '.[sites]'\n"
    )
    assert run_without(*SITES, commands=commands) == [Done(USER_ERROR, "", expected)] * 3


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["explain", "SPEC", "--plan", "((a b)"], "error: plan text is wrong at character 7"),
        (["explain", "SPEC", "--plan", "(a b)"], "error: plan '(a b)' leaves out 'c'"),
        (["explain", "SPEC", "--slots", "0"], "error: option '--slots' is 0"),
        (["explain", "SPEC", "--picture", "plan.png"], "error: option '--picture' is 'plan.png'"),
        (["place", *PLACED, "--picture", "network.txt"], "error: option '--picture' is 'network.txt'"),
        (["run", "SPEC", "--master", "somewhere"], "error: 'somewhere' is not a valid Spark master"),
        (["run", "SPEC", "--conf", "spark.ui.port"], "error: option '--conf' is 'spark.ui.port'"),
        (["run", "SPEC", "--conf", "driver.memory=4g"], "error: 'driver.memory' is not a setting of Spark"),
        (["run", "SPEC", "--conf", "spark.master=yarn"], "error: 'spark.master' is not accepted as a setting"),
        (["run", "SPEC", "--report", "/dev/null/report.json"], "error: '/dev/null/report.json' cannot be written"),
        (["run", "SPEC", "--console", "here"], "error: 'here' is not an address for the console"),
        (["explain", "SPEC", "--picture", "no-such-folder/plan.svg"], "error: 'no-such-folder/plan.svg' cannot be"),
        (["explain", "no-such.yaml"], "error: spec file 'no-such.yaml' does not exist"),
        (["run", "no-such.yaml"], "error: spec file 'no-such.yaml' does not exist"),
    ],
)
def test_a_users_error_is_printed_without_a_traceback(
    arguments: list[str], expected: str, spec_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(spec_file) if argument == "SPEC" else argument for argument in arguments]
    assert cli.main(given) == USER_ERROR
    shown = capsys.readouterr().err
    assert shown.startswith(expected)
    assert "Traceback" not in shown


def test_explain_refuses_a_scheduled_plan_that_does_not_fit(
    spec_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec_file.write_text(SPEC + 'switch: [{at_batch: 3, plan: "(a z)"}]\n')
    assert cli.main(["explain", str(spec_file)]) == USER_ERROR
    assert "joins 'z', which the query does not have" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sink", "expected"),
    [
        ("{format: parquet, path: out, partition_by: [q]}", "partition column 'q' is not in the SELECT list"),
        ("{format: parquet, path: out, partition_by: [p0, p1]}", "every selected column is a partition column"),
        ("{format: memory}", "the memory sink has no name"),
        ("{format: console, options: {numRows: many}}", "numRows of the 'console' sink is 'many'"),
        ("{format: jdbc, options: {dbtable: t}}", "the 'jdbc' sink has no url"),
        (
            "{format: jdbc, options: {url: 'jdbc:x:y', dbtable: t, keyColumns: q}}",
            "key column 'q' is not in the SELECT",
        ),
        ("{format: jdbc, options: {url: 'jdbc:x:y', dbtable: t, batchColumn: p0}}", "'p0' is a column of the results"),
        (
            "{format: jdbc, options: {url: '${NOT_SET_ANYWHERE}', dbtable: t}}",
            "variable 'NOT_SET_ANYWHERE', which is not",
        ),
        ("{format: csv, path: out}\nlate: {format: csv, path: out/}", "write to the same place"),
        ("{format: csv, path: out}\nlate: {format: csv, path: late, partition_by: [p0]}", "partition column 'p0'"),
    ],
)
def test_explain_refuses_a_sink_that_a_run_would_refuse(
    sink: str, expected: str, spec_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec_file.write_text(SPEC.replace("{format: parquet, path: out}", sink))
    assert cli.main(["explain", str(spec_file)]) == USER_ERROR
    assert expected in capsys.readouterr().err


def test_the_spec_in_the_help_can_be_explained_as_it_stands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["run", "--help"])
    shown = capsys.readouterr().out.partition("A spec file:")[2]
    (tmp_path / "spec.yaml").write_text(dedent(shown))
    assert cli.main(["explain", str(tmp_path / "spec.yaml")]) == 0
    assert "selectivity of a.k = b.k" in capsys.readouterr().out


def test_explain_says_that_only_spark_knows_a_format(spec_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec_file.write_text(SPEC.replace("format: parquet, path: out", "format: parqet, path: out"))
    assert cli.main(["explain", str(spec_file)]) == 0
    assert "whether Spark has format 'parqet' of the sink is checked at the start; did you mean 'parquet'?" in (
        capsys.readouterr().err
    )


def test_a_foreign_checkpoint_is_reported_before_spark_starts(
    spec_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = load(spec_file)
    LocalHost(compile_query(spec.only.query, spec.catalog()), parse_plan("(a b c)"), checkpoint=str(tmp_path / "ckpt"))
    started: list[str] = []

    def start(*_: object) -> Any:
        started.append("Spark")
        raise HostError("that far")

    monkeypatch.setattr(run_command, "prepared", start)
    spec_file.write_text(SPEC.replace("s2 [RANGE 5 SECONDS]", "s2 [RANGE 6 SECONDS]"))
    assert cli.main(["run", str(spec_file)]) == USER_ERROR
    told = capsys.readouterr().err
    assert not started
    assert "has changed" in told
    assert "--evolve allow" in told
    assert "it has '5', this query '6'" in told
    before, after = SPEC.split("s2:", 1)
    spec_file.write_text(f"{before}s2:{after.replace('k bigint', 'k int', 1)}")
    assert cli.main(["run", str(spec_file)]) == USER_ERROR
    told = capsys.readouterr().err
    assert "the texts are equal, but of 's2' it reads k bigint" in told
    spec_file.write_text(SPEC)
    assert cli.main(["run", str(spec_file)]) == USER_ERROR
    assert started == ["Spark"]


def test_an_error_is_a_line_of_json_where_logs_are(spec_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec_file.write_text(SPEC.replace("checkpoint: ckpt", "sinc: {}"))
    handlers = list(LOG.handlers)
    try:
        assert cli.main(["run", str(spec_file), "--log", "json"]) == USER_ERROR
    finally:
        LOG.handlers[:] = handlers
        logging.captureWarnings(False)
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["kind"] == "SpecError"


def test_a_shortened_option_is_refused(spec_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["run", str(spec_file), "--slot", "2"])
    assert "unrecognized arguments: --slot" in capsys.readouterr().err


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    require_writable(report)
    assert list(tmp_path.iterdir()) == []
    replace_text(report, "first")
    with pytest.raises(UnicodeEncodeError):
        replace_text(report, "sec\ud800ond")
    assert report.read_text() == "first"


@pytest.mark.parametrize(
    "words",
    [
        ["explain", "SPEC", "--picture", "SPEC/plan.svg"],
        ["place", *PLACED, "--json", "SPEC/deployments.json"],
        ["place", *PLACED, "--picture", "SPEC/network.svg"],
    ],
)
def test_a_place_that_cannot_be_written_is_named(
    words: list[str], spec_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([word.replace("SPEC", str(spec_file)) for word in words]) == USER_ERROR
    assert capsys.readouterr().err.startswith(f"error: '{words[-1].replace('SPEC', str(spec_file))}' cannot be written")


def test_an_error_of_the_query_points_at_its_place(spec_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec_file.write_text(SPEC.replace("a.p > 3", "a.q > 3"))
    assert cli.main(["explain", str(spec_file)]) == USER_ERROR
    shown = capsys.readouterr().err
    assert "(line 2, column" in shown
    assert "^" in shown


def test_debug_lets_the_error_through(spec_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VERBOSE, "0")
    with pytest.raises(Exception, match="leaves out"):
        cli.main(["--debug", "explain", str(spec_file), "--plan", "(a b)"])


@pytest.mark.parametrize("command", ["run", "explain", "bench", "calibrate", "prepare", "doctor", "place"])
def test_every_command_has_help_with_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert ended.value.code == 0
    assert f"anabranch {command}" in capsys.readouterr().out.split("examples:")[1]


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out.startswith("anabranch ")


def test_benchmarks_need_a_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["bench"]) == USER_ERROR
    assert "clone of the repository" in capsys.readouterr().err


def test_the_doctor_gives_the_remedy(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = Finding("python", "3.11"), Finding("java", "java was not found", "install a Java 17 runtime")
    monkeypatch.setattr(doctor, "examine", lambda: [good, bad])
    assert cli.main(["doctor"]) == USER_ERROR
    shown = capsys.readouterr().out
    assert "ok python" in shown
    assert "hint: install a Java 17 runtime" in shown


def test_a_missing_java_is_a_finding_not_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    java = next(finding for finding in doctor.examine() if finding.name == "java")
    assert not java.is_good
    assert "17" in java.remedy
