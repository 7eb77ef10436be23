"""The commands of docs/PIPELINE.md and of `examples/pipeline`: each is one that its job takes, and
the files around it are what systemd, cron and Kubernetes take, as far as that goes without them.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from configparser import RawConfigParser
from pathlib import Path

import click
import pytest

from replog_pipeline.cli import COMMANDS, pipeline
from replog_pipeline.errors import PipelineError

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "pipeline"
UNITS = ("replog-archive.service", "replog-maintain.service", "replog-maintain.timer")
PATHS = re.compile(r"%S|%d")
CRON_FIELDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


def of_page(name: str) -> list[str]:
    """The indented lines of a page that begin with a job, without what is optional in brackets."""
    text = (ROOT / "docs" / name).read_text()
    found = re.findall(r"^ +(?:\$ )?replog pipeline (.+)$", text, re.MULTILINE)
    return [re.sub(r"\[.*\]", "", line.partition("  #")[0].replace("\\`", "`")) for line in found]


def of_units() -> list[str]:
    found = [
        re.findall(r"^ExecStart=\S+ pipeline (.+)$", unit(name), re.MULTILINE) for name in UNITS
    ]
    return [PATHS.sub("/var/lib", line) for lines in found for line in lines]


def of_crontab() -> list[str]:
    found = re.findall(r"\$REPLOG pipeline (.+?) >", (EXAMPLES / "crontab").read_text())
    return [line.replace("$LAKE", "/srv/lake") for line in found]


def of_kubernetes() -> list[str]:
    found = re.findall(r"args: (\[.*\])", (EXAMPLES / "kubernetes.yaml").read_text())
    return [shlex.join(json.loads(each)) for each in found]


def unit(name: str) -> str:
    return (EXAMPLES / name).read_text()


PAGE = of_page("PIPELINE.md")
FILES = of_units() + of_crontab() + of_kubernetes()


def test_all_of_them_are_found() -> None:
    assert {line.split()[0] for line in PAGE} == {*COMMANDS} - {"demo"}
    assert [line.split()[0] for line in FILES] == [
        *("archive", "maintain"),
        *("archive", "maintain"),
        *("archive", "archive", "maintain"),
    ]


@pytest.mark.parametrize("line", PAGE + FILES)
def test_its_job_takes_it(line: str) -> None:
    words = shlex.split(line)
    if words[0] == "submit":  # before the job are spark-submit's own options
        words = words[
            next(at for at, word in enumerate(words) if word in set(COMMANDS) - {"submit"}) :
        ]
    if words[-1] == "...":
        words = [words[0], "--help"]
    with click.Context(pipeline) as parent:
        command = pipeline.get_command(parent, words[0])
        assert command is not None
        try:
            command.make_context(words[0], words[1:], parent).close()
        except click.exceptions.Exit as shown:
            assert shown.exit_code == 0 and "--help" in words
        except (click.BadParameter, PipelineError) as error:  # a file of the page's reader
            assert re.search("[Nn]o such file|does not exist", str(error)), error


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze: not here")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    for name in UNITS:
        (tmp_path / name).write_text(unit(name).replace("/opt/replog/bin/replog", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", *(str(tmp_path / name) for name in UNITS)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr


def test_both_services_are_one_user_with_one_table() -> None:
    units = [RawConfigParser(strict=False) for _ in UNITS[:2]]
    for parser, name in zip(units, UNITS, strict=False):
        parser.optionxform = str  # type: ignore[assignment]
        parser.read_string(unit(name))
    archive, maintain = (parser["Service"] for parser in units)
    assert maintain["User"] == UNITS[0].removesuffix(".service")
    for name in ("DynamicUser", "StateDirectory", "CacheDirectory", "Environment"):
        assert archive[name] == maintain[name]
    assert archive["KillMode"] == "mixed"


def test_the_crontab() -> None:
    lines = (EXAMPLES / "crontab").read_text().splitlines()
    jobs = [line for line in lines if re.match(r"[\d*]", line)]
    assert len(jobs) == 2 and "%" not in "".join(jobs)
    for line in jobs:
        for field, (low, high) in zip(line.split(None, 5)[:5], CRON_FIELDS, strict=True):
            found = re.fullmatch(r"\*(?:/(\d+))?|(\d+)", field)
            assert found and all(
                low <= int(number) <= high for number in found.groups() if number is not None
            )
