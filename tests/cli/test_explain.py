"""`replog explain`: whom it asks, what it says, and its exit statuses.

Brokers are HTTP servers that say what the test says.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.replication.fixtures import MAX_LAG_MS, WALL_MS, PartitionFixture, registration
from tests.replication.test_explanation import confirm
from twisted_broker.cli.main import main
from twisted_broker.replication.explain.explanation import Fetching, explain
from twisted_broker.replication.explain.reasons import Moment

METADATA: dict[str, Any] = {
    "offset": 7,
    "leader": 1,
    "leader_epoch": 5,
    "partition_epoch": 10,
    "replicas": [1, 2, 3],
    "isr": [1, 2],
    "eligible_leader_replicas": [],
    "fenced": [3],
}
Serve = Callable[[Any], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Makes a broker that tells this of partition t-0, or 404 for None; its address."""
    servers: list[ThreadingHTTPServer] = []

    def make(told: Any) -> str:
        class Telling(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = told is not None and self.path in ("/explain/t/0", "/explain/a%2Fgroup")
                body = json.dumps(told).encode() if known else b"broker 9 knows no such partition\n"
                self.send_response(200 if known else 404)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Says nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Telling)
        servers.append(server)
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return f"127.0.0.1:{server.server_port}"

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def nobody() -> str:
    """An address at which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


def leader_tells() -> dict[str, Any]:
    """Broker 3 was left out, broker 2 holds the high watermark."""
    fixture = PartitionFixture()
    fixture.append(2)
    for broker in (2, 3):
        fixture.follower_fetches(broker, 2)
    fixture.append()
    fixture.now_ms += MAX_LAG_MS + 1
    fixture.follower_fetches(2, 3)
    fixture.partition.maybe_shrink_isr(fixture.now_ms)
    confirm(fixture)
    fixture.append(2)
    fixture.now_ms += 1500
    return asdict(explain(fixture.partition, Moment(fixture.now_ms, WALL_MS))) | {
        "metadata": METADATA
    }


def follower_tells() -> dict[str, Any]:
    fixture = PartitionFixture(replicas=(1,))
    for _ in range(4):
        fixture.append()
    fixture.partition.make_follower(
        registration(1, (1, 2, 3), None, 6, 11), fixture.log, fixture.now_ms
    )
    fixture.partition.truncate_to(3, WALL_MS)
    told = asdict(
        explain(
            fixture.partition,
            Moment(fixture.now_ms, WALL_MS),
            (),
            Fetching("f", "fetching", 3, 0, 0, "fetching from broker 1 at 3"),
        )
    )
    return told | {"broker": 2, "metadata": METADATA}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["explain", *arguments])


def test_a_partition_is_explained(serve: Serve, nobody: str) -> None:
    """RL 2.3, 2.4, 6.3: the leader's view first, each follower's, and whoever does not answer;
    the reasons in words.
    """
    leading, followed = leader_tells(), follower_tells()
    leader, follower = serve(leading), serve(followed)
    result = run("t", "0", "--status", follower, "--status", nobody, "--status", leader)
    assert result.exit_code == 0, result.output
    paragraphs = result.stdout.split("\n\n")
    assert (
        paragraphs[0]
        == "t-0: broker 1 leads at epoch 5; in sync 1, 2 of 1, 2, 3, min.insync.replicas 1"
    )
    assert paragraphs[1].splitlines()[1:] == [
        f"  log 0 to 5, {leading['bytes']} bytes; high watermark 3",
        "  the high watermark waits: it waits for broker 2, 2 offsets behind, for 1.5 s",
        "    broker 2 is at 3, in the ISR",
        "  broker 3 is out of sync since 2023-11-14 22:13:18 UTC (1.5 s): it was not caught "
        "up for replica.lag.time.max.ms "
        "(30.0 s; last caught up 30.0 s before), its log end was 2 of 3",
        "    its last fetch was 31.5 s ago",
        "    its log end 2 is 1 offset below the high watermark",
    ]
    assert paragraphs[2].splitlines() == [
        f"broker 2 ({follower}) follows broker 1 at epoch 6 since 2023-11-14 22:13:20 UTC",
        f"  log 0 to 3, {followed['bytes']} bytes; high watermark 3",
        "  fetching from broker 1 at 3",
        "  truncated at 2023-11-14 22:13:20 UTC from 4 to 3: under leader epoch 6, dropped "
        f"1 offset, {followed['bytes'] // 3} bytes, "
        "1 of them below its high watermark 4: acknowledged, and perhaps consumed",
    ]
    assert (
        paragraphs[3].startswith(f"the broker at {nobody}: it cannot be reached")
        and "refused" in paragraphs[3]
    )


def test_without_a_leader_the_metadata_is_explained(serve: Serve) -> None:
    """KIP-966: nobody leads: who was in sync, who is fenced, who may lead."""
    followed = follower_tells()
    told = followed | {
        "metadata": METADATA | {"leader": -1, "isr": [], "eligible_leader_replicas": [3]}
    }
    assert run("t", "0", "--status", serve(told)).stdout.startswith(
        "t-0: it has no leader, at epoch 5; in sync none of 1, 2, 3; broker 3 fenced; "
        "eligible to lead: 3\n"
    )
    assert (
        "t-0: broker 1 leads it, but was not queried or does not answer, at epoch 5"
        in run("t", "0", "--status", serve(followed)).stdout
    )


def test_a_leader_that_was_not_queried_is_named(serve: Serve, nobody: str, tmp_path: Path) -> None:
    """One process's run file names its own brokers only; a leader that was asked, or asked in
    vain, needs no such line.
    """
    hint = (
        "  query broker 1 too, when it runs: add --run-file with its run file, or --status "
        "with its HOST:PORT (repeat the option for each process)"
    )
    leader, follower = serve(leader_tells()), serve(follower_tells())
    own, others = tmp_path / "2.json", tmp_path / "1.json"
    own.write_text(json.dumps({"brokers": {"2": {"status": follower}}}))
    assert run("t", "0", "--run-file", str(own)).stdout.splitlines()[1] == hint
    others.write_text(json.dumps({"brokers": {"1": {"status": leader}}}))
    assert hint not in run("t", "0", "--run-file", str(own), "--run-file", str(others)).stdout
    others.write_text(json.dumps({"brokers": {"1": {"status": nobody}}}))
    in_vain = run("t", "0", "--run-file", str(own), "--run-file", str(others)).stdout
    assert hint not in in_vain and f"broker 1 at {nobody}: it cannot be reached" in in_vain


def test_run_files_name_whom_to_ask(serve: Serve, nobody: str, tmp_path: Path) -> None:
    """All brokers of all run files; one that is gone is a remark, and the others are asked."""
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    first.write_text(
        json.dumps(
            {
                "brokers": {
                    "1": {"status": serve(leader_tells())},
                    "2": {"status": nobody},
                    "3": {"status": None},
                }
            }
        )
    )
    result = run("t", "0", "--run-file", str(first), "--run-file", str(second))
    assert result.exit_code == 0
    assert (
        "broker 1 leads" in result.stdout
        and f"broker 2 at {nobody}: it cannot be reached" in result.stdout
    )
    assert str(second) in result.stderr and str(second) not in result.stdout


def test_json_is_what_each_answered(serve: Serve, nobody: str) -> None:
    """One object per broker and line, in the order of the question."""
    told = leader_tells()
    lines = [
        json.loads(line)
        for line in run(
            "t", "0", "--json", "--status", serve(told), "--status", nobody
        ).stdout.splitlines()
    ]
    assert lines[0]["state"] == json.loads(json.dumps(told)) and lines[0]["error"] is None
    assert lines[1]["state"] is None and lines[1]["address"] == nobody and lines[1]["error"]


def test_exit_statuses(serve: Serve, nobody: str, tmp_path: Path) -> None:
    """0 told, 1 nobody knows it, 2 a wrong question."""
    known, unknown = serve(leader_tells()), serve(None)
    assert run("t", "0", "--status", known, "--status", unknown).exit_code == 0
    assert run("t", "1", "--status", known).exit_code == 1
    missing = run("t", "0", "--status", unknown, "--status", nobody)
    assert missing.exit_code == 1 and "broker 9 knows no such partition" in missing.stderr
    for wrong in (
        ["t", "0"],
        ["t", "x", "--status", known],
        ["t", "-1", "--status", known],
        ["t", "0", "--run-file", str(tmp_path / "none")],
    ):
        assert run(*wrong).exit_code == 2, wrong
    (tmp_path / "off.json").write_text(json.dumps({"brokers": {"1": {"status": None}}}))
    off = run("t", "0", "--run-file", str(tmp_path / "off.json"))
    assert off.exit_code == 2 and "replog.status.port=-1" in off.output


@pytest.mark.parametrize("answer", ["nothing", [], {"role": "leader"}, 5])
def test_an_address_where_something_else_answers(serve: Serve, answer: Any) -> None:
    """What is not a broker's answer is a line, not a traceback."""
    result = run("t", "0", "--status", serve(answer))
    assert (
        result.exit_code == 1
        and "it cannot be reached" in result.stderr
        and result.exception.__class__ is SystemExit
    )


def test_a_group_is_explained(serve: Serve) -> None:
    """Without a partition: by its coordinator; the others do not know it."""
    member = {
        "instance": None,
        "client": "c",
        "host": "/10.0.0.1",
        "protocol": "consumer",
        "epoch": 3,
        "state": "STABLE",
    }
    told = {
        "broker": 1,
        "group": "a/group",
        "kind": "consumer",
        "state": "Reconciling",
        "epoch": 4,
        "assignment_epoch": 3,
        "why": ["a reason"],
        "members": [
            member
            | {
                "member": "m1",
                "assigned": {"t": [0, 1]},
                "to_give_up": {"t": [2]},
                "waits_for": [],
                "why": ["it waits"],
            },
            member
            | {
                "member": "m2",
                "instance": "i",
                "assigned": {},
                "to_give_up": {},
                "waits_for": [],
                "why": [],
            },
        ],
    }
    knows, other = serve(told), serve(None)
    result = run("a/group", "--status", other, "--status", knows)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "a/group: a consumer group, Reconciling, epoch 4, target of epoch 3; members 2; "
        f"coordinator broker 1 ({knows})",
        "  a reason",
        "",
        "member m1 (c at 10.0.0.1), consumer, at epoch 3",
        "  has: t 0, 1",
        "  is to give up: t 2",
        "  it waits",
        "",
        "member m2, instance i (c at 10.0.0.1), consumer, at epoch 3",
    ]
    classic = {
        "broker": 1,
        "group": "g",
        "kind": "classic",
        "state": "Stable",
        "generation": 2,
        "leader": "m",
        "why": [],
        "members": [],
    }
    result = run("a/group", "--status", serve(classic))
    assert result.stdout.startswith("g: a classic group, Stable, generation 2; members 0; ")
    assert run("nobody", "--status", other).exit_code == 1


def test_a_share_group_is_explained_by_its_coordinator_and_by_leaders(serve: Serve) -> None:
    of_leader = {
        "topic": "t",
        "partition": 0,
        "start_offset": 5,
        "end_offset": 9,
        "locked": 2,
        "why": ["offsets 5 to 6 are locked by member m for 9.0 s more; delivery 1 of 5"],
    }
    reads = {"topic": "t", "partition": 1, "why": ["its state is being read"]}
    group = {"group": "g", "kind": "share"}
    leader = serve({"broker": 2, "share_partitions": [of_leader, reads]} | group)
    coordinator = serve(
        {
            "broker": 1,
            "state": "Stable",
            "epoch": 2,
            "assignment_epoch": 2,
            "why": [],
            "members": [
                {"member": "m", "client": "c", "host": "/h", "protocol": "share", "epoch": 2}
            ],
        }
        | group
    )
    result = run("a/group", "--status", leader, "--status", coordinator)
    assert result.stdout.splitlines() == [
        "g: a share group, Stable, epoch 2, target of epoch 2; members 1; coordinator broker 1 "
        f"({coordinator})",
        "",
        "member m (c at h), share, at epoch 2",
        "",
        "t-0 at its leader, broker 2: begins at 5, given out up to 9, 2 offsets locked",
        "  offsets 5 to 6 are locked by member m for 9.0 s more; delivery 1 of 5",
        "",
        "t-1 at its leader, broker 2",
        "  its state is being read",
    ]


def test_the_tasks_of_a_streams_member_are_named(serve: Serve) -> None:
    told = {
        "broker": 1,
        "group": "g",
        "kind": "streams",
        "state": "Reconciling",
        "epoch": 2,
        "assignment_epoch": 2,
        "why": [],
        "members": [
            {
                "member": "m",
                "client": "c",
                "host": "/h",
                "protocol": "streams",
                "epoch": 2,
                "tasks": {"active": ["0_0", "0_1"], "standby": ["1_0"]},
                "tasks_to_give_up": {"active": ["0_2"]},
                "why": ["it waits"],
            }
        ],
    }
    result = run("a/group", "--status", serve(told))
    assert result.stdout.splitlines()[2:] == [
        "member m (c at h), streams, at epoch 2",
        "  has: active 0_0, 0_1; standby 1_0",
        "  is to give up: active 0_2",
        "  it waits",
    ]
