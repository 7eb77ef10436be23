"""Draws `picture.svg`, which the README shows: what a terminal says when three brokers start, a
record is written and read, and `replog explain` is asked. The commands are run; nothing is made up.

    python docs/picture.py
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent
PROGRAMS = Path(sys.executable).parent
WIDTH = 112
TITLE = "twisted-broker"


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        console = drawn(Path(directory))
    # Without the web's fonts: a page of the README loads nothing from elsewhere.
    svg = console.export_svg(title=TITLE, unique_id="replog")
    lines, inside = [], False
    for line in svg.splitlines():
        inside = inside or line.strip().startswith("@font-face")
        if not inside:
            lines.append(line.rstrip())
        inside = inside and "}" not in line
    (HERE / "picture.svg").write_text("\n".join(lines) + "\n")


def drawn(directory: Path) -> Console:
    console = Console(record=True, width=WIDTH, file=(directory / "out").open("w"))
    run_file = directory / "brokers.json"
    options = ["--brokers", "3", "--set", "default.replication.factor=3", "--data", "memory"]
    prompt(console, ["twisted-broker", *options, "--run-file", run_file.name, "&"])
    log = directory / "log"
    with (
        log.open("w") as output,
        subprocess.Popen(
            [str(PROGRAMS / "twisted-broker"), *options, "--run-file", str(run_file)],
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as broker,
    ):
        try:
            while not run_file.exists():
                if broker.poll() is not None:
                    raise SystemExit(log.read_text())
                time.sleep(0.02)
            for line in log.read_text().splitlines():
                if " ready on " in line:
                    console.print(Text(line.partition("] ")[2]))
            bootstrap = json.loads(run_file.read_text())["bootstrap"].partition(",")[0]
            typed(
                console, ["kafka-python", "producer", "-b", bootstrap, "-t", "orders"], "one book\n"
            )
            reader = ["consumer", "-b", bootstrap, "-t", "orders", "-g", "shop"]
            read(console, ["kafka-python", *reader, "-C", "auto_offset_reset=earliest"])
            typed(console, ["replog", "explain", "orders", "0", "--run-file", str(run_file)])
        finally:
            broker.terminate()
    return console


def prompt(console: Console, command: list[str], given: str = "") -> None:
    echo = f"echo {given.strip()} | " if given else ""
    console.print(Text("$ ", style="bold green") + Text(echo + " ".join(command), style="bold"))


def typed(console: Console, command: list[str], given: str = "") -> None:
    """Runs it, and shows what it says; of the temporary folder only the file."""
    prompt(console, [Path(each).name if "/" in each else each for each in command], given)
    done = subprocess.run(
        [str(PROGRAMS / command[0]), *command[1:]],
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    if not given:
        console.print(Text(done.stdout.rstrip()))


def read(console: Console, command: list[str]) -> None:
    """Runs a consumer until it has shown a record."""
    prompt(console, command)
    with subprocess.Popen(
        [str(PROGRAMS / command[0]), *command[1:]],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as reader:
        assert reader.stdout is not None
        console.print(Text(reader.stdout.readline().rstrip()))
        reader.terminate()


if __name__ == "__main__":
    main()
