"""What ends a job, at the command line: a finding is status 1, everything else status 2 and one
line, whatever raised it.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from replog_pipeline import cli
from replog_pipeline.errors import (
    LONGEST_LINE,
    TRACEBACK,
    JobFailedError,
    PipelineError,
    as_pipeline_error,
)
from twisted_broker.log.errors import CheckpointError
from twisted_broker.wire.errors import WireError

JAVA = """An error occurred while calling o95.save.
: {raised}: {said}
\tat org.apache.spark.sql.delta.Some.method(Some.scala:88)
"""


def classes(module: str, base: type[BaseException] = Exception) -> Iterator[type[BaseException]]:
    """All exception classes that a module names; none where it is not installed."""
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        return
    found = vars(importlib.import_module(module)).values()
    yield from (each for each in found if isinstance(each, type) and issubclass(each, base))


def family(base: type[BaseException]) -> Iterator[type[BaseException]]:
    yield base
    for each in base.__subclasses__():
        yield from family(each)


MODULES = (
    "pyspark.errors",
    "pyspark.errors.exceptions.base",
    "pyspark.errors.exceptions.captured",
    "py4j.protocol",
    "py4j.java_gateway",
    "pyarrow.lib",
)
"""Delta's are Java's: `test_what_delta_raises_in_java_is_printed_without_the_class`."""
OTHERS = (
    shutil.Error,
    shutil.SpecialFileError,
    json.JSONDecodeError,
    zlib.error,
    struct.error,
    zipfile.BadZipFile,
    subprocess.CalledProcessError,
    socket.gaierror,
    ssl.SSLError,
    UnicodeDecodeError,
    WireError,
    CheckpointError,
)
EVERY = sorted(
    {
        *(each for module in (*MODULES, "builtins") for each in classes(module)),
        *family(OSError),
        *OTHERS,
    },
    key=lambda kind: (kind.__module__, kind.__qualname__),
)
JOBS = ("archive", "replay", "maintain", "audit", "compare", "report", "sql")
WAYS = (
    (13, "Permission denied", "/lake"),
    ("said", "text", 3),
    ("said", [ValueError("inner")]),
    ("said",),
    (),
)


def made(kind: type[BaseException]) -> BaseException:
    """One of this class, made as it may be; else one whose `__init__` never ran, so that not
    even its text can be had.
    """
    for arguments in WAYS:
        try:
            return kind(*arguments)
        except Exception:  # noqa: S112  the next way is tried
            continue
    return kind.__new__(kind)


def ended(error: BaseException, monkeypatch: pytest.MonkeyPatch, *options: str) -> Result:
    """What the group makes of a command that raises `error`."""

    @click.command("probe")
    def probe() -> None:
        raise error

    monkeypatch.setattr(cli.Jobs, "get_command", lambda self, ctx, name: probe)
    return CliRunner().invoke(cli.pipeline, [*options, "probe"])


def line(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> str:
    told = ended(error, monkeypatch)
    assert told.exit_code == 2 and told.stdout == ""
    assert (
        told.stderr.startswith("replog pipeline: ")
        and told.stderr.count("\n") == 1
        and told.stderr.endswith("\n")
    )
    return told.stderr.removeprefix("replog pipeline: ").removesuffix("\n")


def test_there_are_classes_of_all_whose_work_it_is() -> None:
    kinds = {kind.__module__.partition(".")[0] for kind in EVERY}
    assert {"builtins", "pyspark", "py4j", "pyarrow"} <= kinds and len(EVERY) > 100


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: f"{kind.__module__}.{kind.__qualname__}")
def test_every_exception_is_one_line_and_status_two(
    kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(line(made(kind), monkeypatch)) > 3


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_who_interrupts_gets_no_findings(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert line(error, monkeypatch) == "interrupted"


def test_click_errors_that_would_be_status_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "x.json" in line(click.FileError("x.json", "gone\nreally"), monkeypatch)


def test_an_error_of_ours_is_its_own_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert line(PipelineError("--from: no such\n  thing"), monkeypatch) == "--from: no such thing"


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (
            "io.delta.exceptions.ConcurrentAppendException",
            "[DELTA_CONCURRENT_APPEND] Files were added",
        ),
        (
            "org.apache.spark.sql.delta.DeltaFileNotFoundException",
            "[DELTA_TRUNCATED_TRANSACTION_LOG] Unable to reconstruct state",
        ),
        (
            "org.apache.spark.sql.delta.DeltaIllegalStateException",
            "[DELTA_STATE_RECOVER_ERROR] The metadata of your table",
        ),
        ("com.fasterxml.jackson.core.JsonParseException", "Unexpected end-of-input"),
    ],
)
def test_what_delta_raises_in_java_is_printed_without_the_class(
    raised: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    py4j: Any = pytest.importorskip("py4j.protocol")

    class FromJava(py4j.Py4JJavaError):
        def __init__(self) -> None:
            Exception.__init__(self)

        def __str__(self) -> str:
            return JAVA.format(raised=raised, said=said)

    FromJava.__module__ = "py4j.protocol"
    assert line(FromJava(), monkeypatch).startswith(f"Spark failed: {said}; REPLOG_TRACEBACK=1")


def test_a_java_that_is_gone_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever py4j makes of it: a call without an answer, a connection refused."""
    protocol: Any = pytest.importorskip("py4j.protocol")
    gateway: Any = pytest.importorskip("py4j.java_gateway")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        port = taken.getsockname()[1]
        parameters = gateway.GatewayParameters(port=port, eager_load=False)
        with pytest.raises(Exception) as refused:
            gateway.JavaGateway(gateway_parameters=parameters).jvm.java.lang.System.nanoTime()
    for error in (
        refused.value,
        protocol.Py4JNetworkError("Error while sending or receiving"),
        protocol.Py4JError("An error occurred while calling o12.getActiveStageIds"),
        protocol.Py4JError("org.apache does not exist in the JVM"),
        protocol.Py4JError("org.apache.spark.sql.SparkSession does not exist in the JVM"),
    ):
        assert line(error, monkeypatch).startswith("Spark's Java has ended: it was killed, or")
    for own in (
        "An error occurred while calling o12.save. Trace:\nsomething else",
        "org.apache.spark.sql.SparkSession.withdrawn does not exist in the JVM",
    ):
        assert "Spark's Java has ended" not in line(protocol.Py4JError(own), monkeypatch)
    assert "Spark's Java" not in line(
        ConnectionRefusedError(111, "Connection refused"), monkeypatch
    )


def test_py4j_logs_no_stack_and_others_what_they_warn_of() -> None:
    program = (
        "import logging\nfrom replog_pipeline import cli\n"
        "cli.without_py4j()\nlogging.getLogger('other').warning('heed')\n"
        "source = 'import logging\\nlogging.error(\\'Exception while sending command.\\')'\n"
        "exec(compile(source, '/lib/py4j/java_gateway.py', 'exec'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "heed\n")


def test_what_spark_raises_is_its_last_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = pytest.importorskip("pyspark.errors").AnalysisException
    said = (
        "Job aborted.\n\tat org.Stack\nCaused by: "
        "org.apache.kafka.common.errors.TimeoutException: nobody there\n\tat org.More"
    )
    assert line(kind(message=said), monkeypatch).startswith("Spark failed: nobody there; ")


def test_a_server_of_hadoop_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cause alone has no address."""
    kind = pytest.importorskip("pyspark.errors").AnalysisException
    said = (
        "java.net.ConnectException: Call From here/127.0.0.1 to namenode:8020 failed on connection "
        "exception: java.net.ConnectException: Connection refused; For more details see:  x\n\tat y"
        "\nCaused by: java.net.ConnectException: Connection refused\n\tat z"
    )
    told = line(kind(message=said), monkeypatch)
    assert told.startswith("Spark failed: namenode:8020: Connection refused; REPLOG_TRACEBACK")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            'java.io.IOException: Cannot run program "/opt/python3": error=2, No such file\n\tat '
            "x\nCaused by: java.io.IOException: error=2, No such file or directory\n\tat y",
            'Python (Cannot run program "/opt/python3"): install',
        ),
        (
            "PythonException: Traceback (most recent call last):\n  File x\n"
            "ModuleNotFoundError: No module named 'replog_pipeline'\n",
            "(ModuleNotFoundError: No module named 'replog_pipeline'): install the package",
        ),
    ],
)
def test_a_worker_without_this_python_is_told_with_the_remedy(
    said: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = pytest.importorskip("pyspark.errors").AnalysisException
    told = line(kind(message=said), monkeypatch)
    assert words in told and "--archives" in told


def test_who_calls_a_job_has_one_kind_of_error_to_look_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line says the same as without it; a bug is not made one of these."""
    kind = pytest.importorskip("pyspark.errors").AnalysisException

    def job(error: Exception) -> None:
        raise error

    for error in (kind(message="no such column"), OSError(28, "No space", "/x"), WireError("cut")):
        with pytest.raises(JobFailedError) as raised:
            as_pipeline_error(job)(error)
        assert raised.value.__cause__ is error
        assert line(raised.value, monkeypatch) == line(error, monkeypatch)
    for own in (PipelineError("--from: no"), ZeroDivisionError("a bug")):
        with pytest.raises(type(own)) as kept:
            as_pipeline_error(job)(own)
        assert kept.value is own


@pytest.mark.parametrize("name", JOBS)
def test_each_job_raises_nothing_else(name: str) -> None:
    module = importlib.import_module(f"replog_pipeline.jobs.{name}.job")
    assert hasattr(module.run, "__wrapped__")


def test_what_the_file_system_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert line(PermissionError(13, "Permission denied", "/lake/x"), monkeypatch).startswith(
        "/lake/x: Permission denied; "
    )


def test_a_bug_of_ours_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    assert line(ZeroDivisionError("a bug"), monkeypatch).startswith(
        "ZeroDivisionError: a bug (in test_exit_status.py, line "
    )


def test_a_long_line_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        LONGEST_LINE
        < len(line(ValueError("long " * LONGEST_LINE), monkeypatch))
        < LONGEST_LINE + 100
    )


@pytest.mark.parametrize("by_option", [True, False])
def test_the_stack_is_shown_when_asked_for(
    by_option: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRACEBACK, "" if by_option else "1")
    told = ended(PipelineError("wrong"), monkeypatch, *(["--traceback"] if by_option else []))
    assert told.exit_code == 2 and told.stderr.startswith("Traceback (most recent call last):")
    assert told.stderr.endswith("\nreplog pipeline: wrong\n")


def test_findings_are_status_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ended(SystemExit(1), monkeypatch).exit_code == 1
    assert ended(click.UsageError("no such option"), monkeypatch).exit_code == 2
