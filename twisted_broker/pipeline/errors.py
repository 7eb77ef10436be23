"""The one error that users of the pipeline see.

1. Its text is one line: what is wrong, which argument or setting said so, and what to do.
2. The command line prints it on standard error and exits with status 2; findings exit with 1, and 0
   means all is well.
"""

from __future__ import annotations

import re


class PipelineError(Exception):
    """A wrong argument, a missing part or a world that is not as the job needs it; nothing was
    written.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


def from_spark(error: Exception) -> bool:
    """Whether Spark or the JVM raised it: then its last cause says more than Python's stack."""
    return type(error).__module__.partition(".")[0] in ("py4j", "pyspark")


def raised_in_task(error: BaseException) -> str:
    """The line of a PipelineError that a task of a job raised in its worker, out of what Spark
    made of it; empty when there is none.
    """
    found = re.search(r"\bPipelineError: (.+)", str(error))
    return found.group(1).strip() if found else ""


def root_line(error: BaseException) -> str:
    """One line of what lies at the bottom of an error of Spark, without the stack and the name
    of Java's class; of a Python worker its own error.
    """
    lines = [line.strip() for line in str(error).splitlines()]
    in_python = re.search(
        r"^Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(\S.*)", str(error), re.MULTILINE
    )
    if in_python:
        return in_python.group(1).strip()
    causes = [line.removeprefix("Caused by:") for line in lines if line.startswith("Caused by:")]
    said = [
        line for line in lines if line and not line.startswith("An error occurred while calling")
    ]
    last = (causes[-1:] or said[:1] or [type(error).__name__])[0]
    return re.sub(r"^[: ]*([a-zA-Z_$][\w$]*\.)+[\w$]+: ", "", last).strip(": ")
