"""`replog metadata recover`: options, exit statuses and what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.cluster.fixtures import CLUSTER_ID, Fixture
from twisted_broker.cli.main import main
from twisted_broker.cli.verify import verify_directory
from twisted_broker.log.filesystem import OsFileSystem
from twisted_broker.log.meta_properties import (
    MetaProperties,
    read_meta_properties,
    write_meta_properties,
)
from twisted_broker.wire.messages.topics import CreatableTopic, CreateTopicsRequest

NAME = "__cluster_metadata-0"
HOLDER = """
import sys
from twisted_broker.log.filesystem import OsFileSystem
release = OsFileSystem().lock(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A log directory with the metadata of a cluster with one topic of three partitions."""
    directory = tmp_path / "broker"
    directory.mkdir()
    fixture = Fixture()
    fixture.runtime.files = fixture.files = OsFileSystem()  # type: ignore[assignment]
    fixture.directory = str(directory)
    fixture.controller = fixture.open()
    fixture.start()
    fixture.join(1)
    fixture.ask(
        "create_topics",
        CreateTopicsRequest(
            topics=[CreatableTopic(name="t", num_partitions=3, replication_factor=1)]
        ),
        7,
    )
    fixture.controller.stop()
    write_meta_properties(OsFileSystem(), str(directory), MetaProperties(CLUSTER_ID, 2, b"c" * 16))
    return directory


def recover(*options: object) -> Result:
    return CliRunner().invoke(main, ["metadata", "recover", *map(str, options)])


def test_it_says_what_it_took_and_what_may_be_missing(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "controller"
    done = recover("--from", source, "--to", target)
    assert done.exit_code == 0, done.output
    assert f"used {source}: metadata up to offset" in done.output
    assert "it holds 1 topics with 3 partitions, and 1 brokers" in done.output
    assert (
        f"wrote {target / NAME}: node 1 of cluster {CLUSTER_ID}; its next epoch is 102"
        in done.output
    )
    assert "are lost, if there were any" in done.output
    found = read_meta_properties(OsFileSystem(), str(target))
    assert found is not None and (found.cluster_id, found.node_id) == (CLUSTER_ID, 1)
    report = verify_directory(target)
    assert not report.findings, [str(each) for each in report.findings]


def test_a_source_that_is_damaged_is_left_out(source: Path, tmp_path: Path) -> None:
    """One line each on standard error; 1 when none is left, and nothing is written."""
    damaged = tmp_path / "damaged"
    (damaged / NAME).mkdir(parents=True)
    for file in (source / NAME).iterdir():
        content = bytearray(file.read_bytes())
        if file.suffix == ".log":
            content[200] ^= 1
        (damaged / NAME / file.name).write_bytes(content)
    target = tmp_path / "controller"
    done = recover("--from", damaged, "--to", target)
    assert done.exit_code == 1 and not target.exists()
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"not used: {damaged} is damaged: {damaged / NAME}")
    done = recover("--from", damaged, "--from", source, "--to", target)
    assert (
        done.exit_code == 0
        and f"used {source}" in done.output
        and f"not used: {damaged}" in done.stderr
    )


def test_a_target_that_is_not_empty_is_refused(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "controller"
    assert recover("--from", source, "--to", target).exit_code == 0
    done = recover("--from", source, "--to", target)
    assert done.exit_code == 2 and "--move-aside" in done.stderr
    done = recover("--from", source, "--to", target, "--move-aside")
    (aside,) = [path for path in target.iterdir() if path.name.endswith("-stray")]
    assert done.exit_code == 0 and f"kept as {aside}" in done.output
    assert [str(each) for each in verify_directory(target).findings] == [
        f"{aside}: was set aside: metadata that was damaged, or replaced"
    ]


def test_a_controller_that_runs_is_not_touched(source: Path, tmp_path: Path) -> None:
    """Its directory is locked."""
    target = tmp_path / "controller"
    target.mkdir()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(target / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        done = recover("--from", source, "--to", target, "--move-aside")
        assert done.exit_code == 2 and "is in use by another process" in done.stderr
    finally:
        holder.communicate()


def test_the_help_has_an_example() -> None:
    done = CliRunner().invoke(main, ["metadata", "recover", "--help"])
    assert "replog metadata recover --from /mnt/broker1 --from /mnt/broker2" in done.output
