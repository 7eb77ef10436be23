"""`replog pipeline` as a group: what works without Spark, what an error looks like, what
`doctor` finds.
"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from replog_pipeline import cli
from replog_pipeline.errors import PipelineError, root_line
from replog_pipeline.machine import doctor, jars, java
from twisted_broker.installed import install

RUN = (
    "import sys; {before}\nfrom twisted_broker.cli.main import main\nmain(sys.argv[1:], "
    "standalone_mode=True)"
)
WITHOUT_SPARK = (
    "sys.modules.update(dict.fromkeys(['pyspark', 'pyarrow', 'numpy', 'pandas', 'py4j']))"
)
TELL_MODULES = (
    "import atexit; atexit.register(lambda: print([name for name in ('pyspark', "
    "'pyarrow', 'numpy', 'twisted') if name in sys.modules]))"
)


def replog(before: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", RUN.format(before=before), *arguments],
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("pipeline", "--help"),
        ("pipeline", "doctor", "--help"),
        ("pipeline", "jars", "--help"),
    ],
)
def test_help_loads_no_spark(arguments):
    told = replog(TELL_MODULES, *arguments)
    assert told.returncode == 0 and told.stdout.splitlines()[-1] == "[]", told.stderr


def test_without_spark_the_help_says_how_to_install_it():
    told = replog(WITHOUT_SPARK, "pipeline", "--help")
    assert (
        told.returncode == 0
        and install("spark") in " ".join(told.stdout.split())
        and all(name in told.stdout for name in cli.COMMANDS)
    )


def test_without_spark_doctor_lists_what_lacks():
    told = replog(WITHOUT_SPARK, "pipeline", "doctor", "--json")
    assert {check["name"] for check in json.loads(told.stdout)} > {"pyspark", "java"}


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_is_there_and_explains_itself(name):
    told = CliRunner().invoke(cli.pipeline, [name, "--help"])
    assert told.exit_code == 0 and told.output.startswith(f"Usage: pipeline {name}"), told.output


def test_an_unknown_command_is_a_wrong_argument():
    assert CliRunner().invoke(cli.pipeline, ["archiv"]).exit_code == 2


IN_A_WORKER = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "worker.py", line 1, in main
    raise
ValueError: no: such

\tat org.Stack
Caused by: org.More: nothing
"""


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (
            "An error occurred while calling o1.load.\n: org.apache.spark.SparkException: no: "
            "way\n\tat x",
            "no: way",
        ),
        ("[TABLE_NOT_FOUND] The table is gone.\nmore", "[TABLE_NOT_FOUND] The table is gone."),
        (IN_A_WORKER, "ValueError: no: such"),
        ("", "RuntimeError"),
    ],
)
def test_the_bottom_of_an_error(said, line):
    assert root_line(RuntimeError(said)) == line


@pytest.fixture
def healthy(monkeypatch, tmp_path):
    """A machine on which nothing lacks, whatever this one is."""
    monkeypatch.setattr(importlib.metadata, "version", {"pandas": "2.3.3", "pyspark": "4.2.0"}.get)
    monkeypatch.setattr(doctor, "package", lambda name: doctor.Check(name, "there"))
    monkeypatch.setattr(java, "find", lambda: java.Java(tmp_path, "17.0.15", "PATH"))
    monkeypatch.setattr(jars, "missing", lambda wanted: [])
    monkeypatch.setattr(jars, "damaged", lambda wanted: [])


def test_nothing_lacks(healthy):
    told = CliRunner().invoke(doctor.command)
    assert told.exit_code == 0 and "cure" not in told.output and "17.0.15 by PATH" in told.output


def test_what_only_decode_needs_is_named_and_is_no_lack(healthy, monkeypatch):
    monkeypatch.setattr(doctor, "is_installed", lambda name: name != "fastavro")
    told = CliRunner().invoke(doctor.command)
    assert told.exit_code == 0 and "archive --decode: no fastavro: pip install" in told.output


def no_java() -> java.Java:
    raise PipelineError("no Java for Spark: buy one")


LACKS = {
    java.REMEDY: lambda patch: patch.setattr(java, "find", no_java),
    "replog pipeline jars": lambda patch: patch.setattr(jars, "missing", list),
    f"rm {jars.folder() / jars.ALL[0].file} && replog pipeline jars": lambda patch: patch.setattr(
        jars, "damaged", list
    ),
}


@pytest.mark.parametrize("cure", LACKS)
def test_each_lack_comes_with_its_cure(healthy, monkeypatch, cure):
    LACKS[cure](monkeypatch)
    told = CliRunner().invoke(doctor.command)
    assert told.exit_code == 1 and f"cure: {cure}\n" in told.output


def test_the_jars_of_a_store_are_no_lack_unless_they_are_damaged(healthy, monkeypatch):
    large = jars.of(["s3"])
    monkeypatch.setattr(jars, "missing", lambda wanted: [each for each in wanted if each in large])
    told = CliRunner().invoke(doctor.command)
    assert told.exit_code == 0 and "cure" not in told.output
    assert (
        "jars for s3a://: not here, only s3a:// needs them; replog pipeline jars --store s3, 6"
        in (told.output)
    )
    monkeypatch.setattr(jars, "damaged", lambda wanted: [each for each in wanted if each in large])
    told = CliRunner().invoke(doctor.command)
    assert told.exit_code == 1 and " && replog pipeline jars --store s3\n" in told.output


@pytest.mark.parametrize(
    ("name", "version", "fits"),
    [("pandas", "3.0.1", False), ("pandas", "2.3.3", True), ("pyspark", "4.3.0", False)],
)
def test_a_package_of_a_wrong_version_is_a_lack(monkeypatch, name, version, fits):
    monkeypatch.setattr(importlib.metadata, "version", lambda asked: version)
    assert (doctor.package(name).cure == "") is fits
