"""What a JVM prints: nothing of it before it runs, on standard error alone; of one that does not
start the line that says why.
"""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from replog_pipeline.machine import jvm_output
from replog_pipeline.machine.jvm_output import JvmOutput

STACK = """NOTE: Picked up JDK_JAVA_OPTIONS: -Da=b
WARNING: Using incubator modules: jdk.incubator.vector
Exception in thread "main" org.apache.spark.SparkException: Master must be local
\tat org.apache.spark.deploy.SparkSubmit.error(SparkSubmit.scala:1068)
"""


def printed_by_shell(script: str) -> None:
    subprocess.run(["sh", "-c", script], check=True)


def read(capfd, wanted: str) -> str:
    """Standard error, as soon as it has that."""
    deadline, found = time.monotonic() + 60, ""
    while wanted not in found:
        assert time.monotonic() < deadline, found
        found += capfd.readouterr().err
        time.sleep(0.01)
    return found


def test_it_goes_to_standard_error_when_it_runs(capfd: pytest.CaptureFixture[str]) -> None:
    output = JvmOutput()
    with output:
        child = subprocess.Popen(
            ["sh", "-c", "echo first; echo second >&2; read go; echo third"], stdin=subprocess.PIPE
        )
        deadline = time.monotonic() + 60
        while len(output.lines) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    printed_by_shell("echo result")
    assert tuple(capfd.readouterr()) == ("result\n", "")
    output.pass_on()
    child.communicate(b"\n", timeout=60)
    assert read(capfd, "third\n") == "first\nsecond\nthird\n"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (STACK, "Master must be local"),
        (
            "Invalid maximum heap size: -Xmxx\nError: Could not\n",
            "Invalid maximum heap size: -Xmxx",
        ),
        ("Error: Unrecognized option: --x\n\nUsage: ...\n", "Unrecognized option: --x"),
        ("\tat nowhere\n", ""),
        ("", ""),
    ],
)
def test_of_a_start_that_fails_the_cause_is_told_and_nothing_else(
    capfd: pytest.CaptureFixture[str], text: str, cause: str
) -> None:
    output = JvmOutput()
    with output:
        subprocess.run(["cat"], input=text.encode(), check=True)
    assert output.cause() == cause
    assert tuple(capfd.readouterr()) == ("", "")


def test_only_the_first_lines_are_kept(capfd: pytest.CaptureFixture[str]) -> None:
    output = JvmOutput()
    with output:
        printed_by_shell(
            f"echo first; i=0; while [ $i -lt {jvm_output.MOST_LINES + 50} ]; "
            "do echo more; i=$((i+1)); done"
        )
    assert output.cause() == "first" and len(output.lines) == jvm_output.MOST_LINES
    capfd.readouterr()


def test_without_a_standard_output_nothing_is_kept(tmp_path) -> None:
    program = (
        "import os\nos.close(1)\nfrom replog_pipeline.machine.jvm_output import JvmOutput\n"
        "output = JvmOutput()\nwith output:\n    os.write(2, b'through')\n"
        "output.pass_on()\nassert output.cause() == ''"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"through")
