"""The one error that users of the pipeline see, and one line for every other one.

1. The text of a PipelineError is one line: what is wrong, which argument or setting said so, and
   what to do.
2. The command line prints it on standard error and exits with status 2; findings exit with 1, and 0
   means all is well.
3. A job that is called from Python raises nothing else for what the world did to it
   (`as_pipeline_error`).
4. Whatever else was raised, by Spark, Java, Arrow or the file system, has a line too (`line_of`),
   and its text is asked for with care: that of a Java error is fetched from a JVM which may be
   gone.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from twisted_broker.wire.errors import WireError

P = ParamSpec("P")
T = TypeVar("T")

LONGEST_LINE = 1000
TRACEBACK = "REPLOG_TRACEBACK"
"""Set in the environment: whoever ran a job wants the stack too."""
JAVA_GONE = (
    "Spark's Java has ended: it was killed, or had not enough memory: "
    "--spark-conf spark.driver.memory=4g gives more"
)
NO_ANSWER = re.compile(
    r"An error occurred while calling \S+|(?:[a-z]\w*\.)*\w+ does not exist in the JVM"
)
"""All that py4j says of a call whose answer never came. Of a package or a class only a JVM that
does not answer is said to lack it: one that runs takes each unknown name for a package.
"""
REGISTRY_AWAY = "the schema registry does not answer"


class PipelineError(Exception):
    """A wrong argument, a missing part or a world that is not as the job needs it; nothing was
    written.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class RegistryError(PipelineError):
    """A schema registry is at fault, and not a record."""


class RegistryAwayError(RegistryError):
    """It does not answer, or with a failure of its own."""


class JobFailedError(PipelineError):
    """What Spark, Java, the file system or a peer raised in a job, as one line; it is the cause."""


def as_pipeline_error(job: Callable[P, T]) -> Callable[P, T]:
    """A job whose caller has one kind of error to look for; a bug stays what it is."""

    @wraps(job)
    def run(*args: P.args, **named: P.kwargs) -> T:
        try:
            return job(*args, **named)
        except PipelineError:
            raise
        except Exception as error:
            if from_spark(error) or java_is_gone(error) or isinstance(error, OSError | WireError):
                raise JobFailedError(line_of(error)) from error
            raise

    return run


def line_of(error: BaseException) -> str:
    """One line that says what happened."""
    if isinstance(error, PipelineError):
        line = str(error)
    elif java_is_gone(error):
        line = JAVA_GONE
    elif from_spark(error):
        line = (
            raised_in_task(error)
            or without_python(error)
            or of_a_timestamp(error)
            or f"Spark failed: {root_line(error)}"
        )
    elif isinstance(error, OSError):
        line = ": ".join(str(part) for part in (error.filename, error.strerror) if part) or _named(
            error
        )
    elif isinstance(error, KeyboardInterrupt):
        line = "interrupted"
    elif isinstance(error, MemoryError):
        line = "this process has not enough memory"
    else:
        line = f"{_named(error)}{_raised_at(error)}"
    line = " ".join(line.split())
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}..."


def _named(error: BaseException) -> str:
    """With the class, which says what the text alone does not."""
    return f"{type(error).__name__}: {text_of(error)}".removesuffix(": ")


def _raised_at(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f" (in {Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def text_of(error: BaseException) -> str:
    """Its text; empty when it cannot be had."""
    try:
        return str(error)
    except Exception:  # of a Java error: its JVM is gone
        return ""


def from_spark(error: BaseException) -> bool:
    """Whether Spark, Delta or the JVM raised it: then its last cause says more than Python's
    stack.
    """
    return type(error).__module__.partition(".")[0] in ("py4j", "pyspark", "delta")


def java_is_gone(error: BaseException) -> bool:
    """Whether it comes of a JVM that does not answer any more."""
    seen: BaseException | None = error
    while seen is not None:
        name = type(seen).__name__
        frames = traceback.extract_tb(seen.__traceback__)
        if name == "Py4JNetworkError" or (
            isinstance(seen, ConnectionError)
            and any("py4j" in Path(frame.filename).parts for frame in frames)
        ):
            return True
        if name == "Py4JError" and NO_ANSWER.fullmatch(text_of(seen).strip()):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def raised_in_task(error: BaseException) -> str:
    """The line of a PipelineError that a task of a job raised in its worker, out of what Spark
    made of it; empty when there is none.
    """
    found = re.search(r"\bPipelineError: (.+)", text_of(error))
    return found.group(1).strip() if found else ""


def without_python(error: BaseException) -> str:
    """The line for a worker that has no Python, or one that lacks a package; empty for others."""
    found = re.search(
        r'Cannot run program "[^"]+"|ModuleNotFoundError: No module named \S+', text_of(error)
    )
    if not found:
        return ""
    return (
        f"a Spark worker cannot run this job's Python ({found.group(0)}): install the package "
        "with its extra 'spark' there, or ship a packed environment with --archives"
    )


def of_a_timestamp(error: BaseException) -> str:
    """The line for a record in a topic whose timestamp Spark does not hold, for which Java's last
    cause is a `long overflow`; empty for others.
    """
    found = re.search(
        r"Record at topic (\S+) partition (\d+) offset (\d+) has timestamp value (-?\d+) that "
        "overflows",
        text_of(error),
    )
    if not found:
        return ""
    topic, partition, offset, ms = found.groups()
    return (
        f"{topic}-{partition}: the record at offset {offset} has a timestamp that Spark cannot "
        f"hold ({ms} ms): delete up to it (kafka-delete-records, offset {int(offset) + 1}); an "
        "archive takes it with --on-bad-record null, or goes on with --allow-gaps"
    )


def root_line(error: BaseException) -> str:
    """One line of what lies at the bottom of an error of Spark, without the stack and the name
    of Java's class; of a Python worker its own error.
    """
    text = text_of(error)
    lines = [line.strip() for line in text.splitlines()]
    in_python = re.search(
        r"^Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(\S.*)", text, re.MULTILINE
    )
    if in_python:
        return in_python.group(1).strip()
    causes = [line.removeprefix("Caused by:") for line in lines if line.startswith("Caused by:")]
    said = [
        line for line in lines if line and not line.startswith("An error occurred while calling")
    ]
    last = (refused_call(lines) or causes[-1:] or said[:1] or [type(error).__name__])[0]
    return without_class(last) or type(error).__name__


def without_class(line: str) -> str:
    """The line without the name of Java's class before it."""
    return re.sub(r"^[: ]*([a-zA-Z_$][\w$]*\.)+[\w$]+: ", "", line).strip(": ")


def refused_call(lines: Sequence[str]) -> list[str]:
    """What Hadoop says of a server that did not answer: the address, which the cause has not, and
    the cause, without the page that explains it.
    """
    for line in lines:
        found = re.search(r"Call From \S+ to (\S+) failed on [\w ]+: (.+?);", line)
        if found:
            return [f"{found[1]}: {without_class(found[2])}"]
    return []
