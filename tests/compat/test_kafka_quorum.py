"""Controllers of ours and of Apache Kafka 4.3 in one quorum: each place is taken by one or the
other, on the same directory, while brokers serve clients.

KAFKA_JARS: a folder of Apache Kafka 4.3's jars (`make test-java`). Some minutes in all.
"""

from __future__ import annotations

import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from tests.compat.cluster_processes import View
from tests.compat.kafka_processes import CLUSTER_ID, JavaNode, java, require, tool
from tests.compat.mixed_quorum import (
    JAVA,
    LONGEST_GAP,
    OURS,
    MixedQuorum,
    Place,
    ask,
    log_of,
    snapshots,
)
from tests.compat.test_kafka_cleaner import free_port
from tests.faults.relay import Relays
from twisted_broker.wire.messages.broker_lifecycle import (
    BrokerRegistrationRequest,
    BrokerRegistrationRequestFeature,
    BrokerRegistrationRequestListener,
    BrokerRegistrationResponse,
)
from twisted_broker.wire.messages.cluster import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]
CUT_SECONDS = 7.0  # longer than fetch and election time-outs
QUORUM_TOOL = "org.apache.kafka.tools.MetadataQuorumCommand"


@pytest.fixture
def new_quorum(tmp_path: Path) -> Iterator[MixedQuorum]:
    require("kafka-tools", "kafka-raft")
    found = MixedQuorum(tmp_path, metadata_log_max_record_bytes_between_snapshots="8000")
    try:
        yield found
    finally:
        found.end()


@pytest.mark.parametrize("kinds", [(JAVA, JAVA, OURS), (OURS, OURS, JAVA)])
def test_leaders_of_a_mixed_quorum_are_killed(
    new_quorum: MixedQuorum, kinds: tuple[str, ...]
) -> None:
    """QU 8.5, 8.6: the next one goes on; nothing that was acknowledged is lost, repeated, or in
    another order; each sort of controller has led.
    """
    quorum = new_quorum.start(*kinds)
    assert quorum.create("t0") < LONGEST_GAP
    quorum.settle()
    led, gaps = set[str](), list[float]()
    with quorum.view.producing("load") as writer:
        for number in range(1, 7):
            leader = quorum.leader
            led.add(leader.kind)
            leader.kill()
            gaps.append(quorum.create(f"t{number}"))
            leader.spawn()
            quorum.settle()
            quorum.view.until(writer.progress(), "records go on")
    print(kinds, led, [round(each, 2) for each in gaps])
    quorum.view.check_once(writer)
    assert {f"t{number}" for number in range(7)} <= set(quorum.view.admin.list_topics().topics)
    assert max(gaps) < LONGEST_GAP + 3


@pytest.mark.parametrize("kinds", [(JAVA, JAVA, OURS), (OURS, OURS, JAVA)])
def test_a_follower_that_is_stopped_or_killed_changes_no_epoch(
    new_quorum: MixedQuorum, kinds: tuple[str, ...]
) -> None:
    """QU 3.20, 8.6: SIGSTOP for 1 and 5 s, kill -9; then its log is the leader's, byte for byte."""
    quorum = new_quorum.start(*kinds)
    quorum.settle()
    other = next(each for each in quorum.places.values() if kinds.count(each.kind) == 1)
    if quorum.leader is other:
        other.kill()
        quorum.create("another-leads")
        other.spawn()
        quorum.settle()
    epoch, number = quorum.described().leader_epoch, 0
    for seconds in (1, 5, 0, 0, 0):
        assert other.member is not None and other.member.process is not None
        if seconds:
            other.member.process.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            while time.monotonic() - began < seconds:
                number += 1
                quorum.create(f"t{number}")
            quorum.begun_ms = time.time_ns() // 1_000_000
            other.member.process.send_signal(signal.SIGCONT)
        else:
            other.kill()
            number += 1
            quorum.create(f"t{number}")
            other.spawn()
        quorum.settle()
    assert quorum.described().leader_epoch == epoch
    leader = quorum.leader
    other.stop()
    theirs, its = log_of(leader.data), log_of(other.data)
    at = theirs.find(its[:100])
    assert at >= 0 and len(its) > 1000
    assert theirs[at : at + len(its)] == its


def test_each_place_is_taken_over_and_given_back(new_quorum: MixedQuorum) -> None:
    """QU 8.2, 8.3: from three controllers of Java's to three of ours and back, on the directories
    that are there, the leader last; brokers serve all the while.
    """
    quorum = new_quorum.start(JAVA, JAVA, JAVA)
    names, gaps = [], []
    with quorum.view.producing("load") as writer:
        for kind in (OURS, JAVA):
            while True:
                quorum.settle()
                leader = quorum.leader
                others = [each for each in quorum.places.values() if each.kind != kind]
                if not others:
                    break
                place = next((each for each in others if each is not leader), leader)
                place.stop()
                place.spawn(kind)
                names.append(f"t-{kind}-{place.number}")
                gaps.append(quorum.create(names[-1]))
                quorum.view.until(writer.progress(), "records go on")
    print([round(each, 2) for each in gaps])
    quorum.view.check_once(writer)
    assert set(names) <= set(quorum.view.admin.list_topics().topics)
    assert max(gaps) < LONGEST_GAP + 3


@pytest.mark.parametrize("kinds", [(JAVA, JAVA, OURS), (OURS, OURS, JAVA)])
def test_a_voter_with_a_new_disk_joins_by_a_snapshot(
    new_quorum: MixedQuorum, kinds: tuple[str, ...]
) -> None:
    """QU 8.9, 8.10, 4.14: of a leader of the other sort; its old key goes, the new one comes."""
    quorum = new_quorum
    quorum.shared["controller.quorum.auto.join.enable"] = "true"
    quorum.start(*kinds)
    away = next(each for each in quorum.places.values() if kinds.count(each.kind) == 1)
    quorum.settle()
    old = quorum.voters[away.number]
    away.kill()
    names = [f"t{number}" for number in range(60)]
    for name in names:
        quorum.create(name)
    quorum.view.until(lambda: snapshots(quorum.leader.data), "a snapshot is written")
    shutil.rmtree(away.directory)
    away.format(away.kind, "--no-initial-controllers")
    away.spawn()
    quorum.view.until(
        lambda: quorum.voters.get(away.number, old) != old and len(quorum.voters) == 3,
        "it votes with its new disk",
    )
    quorum.settle()
    assert snapshots(away.data)
    for place in quorum.places.values():
        if place is not away:
            place.kill()
            quorum.create(f"without-{place.number}")
            place.spawn()
            quorum.settle()
    assert set(names) <= set(quorum.view.admin.list_topics().topics)


def test_kafkas_tool_changes_the_voters_of_ours(new_quorum: MixedQuorum, tmp_path: Path) -> None:
    """QU 8.14: describe, add-controller and remove-controller of `kafka-metadata-quorum`."""
    quorum = new_quorum
    for place in quorum.places.values():
        first = ("--standalone",) if place.number == 1 else ("--no-initial-controllers",)
        place.format(OURS, *first)
        place.spawn()
    for broker in quorum.brokers.values():
        broker.spawn(wait=False)
    for broker in quorum.brokers.values():
        broker.await_ready()
    quorum.view = View(",".join(each.bootstrap for each in quorum.brokers.values()))
    server = ("--bootstrap-server", quorum.view.bootstrap)
    for number in (2, 3):
        place = quorum.places[number]
        properties = tmp_path / f"{number}.properties"
        lines = place.settings | {"log.dirs": place.data}
        properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        tool(QUORUM_TOOL, *server, "--command-config", str(properties), "add-controller")
    assert sorted(quorum.voters) == [1, 2, 3]
    status = tool(QUORUM_TOOL, *server, "describe", "--status")
    assert "LeaderId:" in status and all(each in status for each in quorum.voters.values())
    replication = tool(QUORUM_TOOL, *server, "describe", "--replication")
    assert replication.count("Follower") == 2 and replication.count("Observer") == 2
    removed = ("--controller-id", "1", "--controller-directory-id", quorum.voters[1])
    tool(QUORUM_TOOL, *server, "remove-controller", *removed)
    quorum.view.until(lambda: sorted(quorum.voters) == [2, 3], "1 is a voter no more")
    quorum.places[1].stop()
    assert quorum.create("after") < LONGEST_GAP


@pytest.mark.long
def test_java_controllers_are_replaced_by_membership_and_come_back(tmp_path: Path) -> None:
    """QU 8.4: three of ours join by themselves, three of Java's leave; then the other way round.
    The leader leaves last; brokers know bootstrap addresses only.
    """
    require("kafka-tools", "kafka-raft")
    quorum = MixedQuorum(
        tmp_path,
        spare=range(4, 10),
        controller_quorum_auto_join_enable="true",
        metadata_log_max_record_bytes_between_snapshots="8000",
    )
    try:
        quorum.start(JAVA, JAVA, JAVA)
        members, names, gaps = [1, 2, 3], list[str](), list[float]()
        with quorum.view.producing("load") as writer:
            for kind, joining in ((OURS, (4, 5, 6)), (JAVA, (7, 8, 9))):
                for number in joining:
                    new = quorum.places[number]
                    new.format(kind, "--no-initial-controllers")
                    new.spawn()
                    members.append(number)
                    quorum.view.until(lambda: sorted(quorum.voters) == members, "it votes")
                    quorum.settle()
                    others = [each for each in members[:-1] if quorum.places[each].kind != kind]
                    leader = quorum.leader.number
                    old = next((each for each in others if each != leader), others[0])
                    key = quorum.voters[old]
                    quorum.places[old].stop()
                    names.append(f"without-{old}")
                    gaps.append(quorum.create(names[-1]))
                    gone = ("--controller-id", str(old), "--controller-directory-id", key)
                    server = ("--bootstrap-server", quorum.view.bootstrap)
                    tool(QUORUM_TOOL, *server, "remove-controller", *gone)
                    members.remove(old)
                    quorum.view.until(lambda: sorted(quorum.voters) == members, "it votes no more")
                    quorum.settle()
                    quorum.view.until(writer.progress(), "records go on")
                assert {quorum.places[each].kind for each in members} == {kind}
        print([round(each, 2) for each in gaps])
        quorum.view.check_once(writer)
        assert set(names) <= set(quorum.view.admin.list_topics().topics)
        assert max(gaps) < LONGEST_GAP
    finally:
        quorum.end()


@pytest.mark.long
@pytest.mark.parametrize("kinds", [(JAVA, JAVA, OURS), (OURS, OURS, JAVA)])
def test_who_is_cut_off_changes_no_epoch_while_a_majority_hears_the_leader(
    tmp_path: Path, kinds: tuple[str, ...]
) -> None:
    """QU 8.7, KIP-996: the one of the other sort at each place. A leader that nobody hears is the
    only one that is replaced.
    """
    require("kafka-tools", "kafka-raft")
    with Relays() as relays:
        quorum = MixedQuorum(tmp_path, relays=relays)
        try:
            quorum.start(*kinds)
            other = next(each for each in quorum.places.values() if kinds.count(each.kind) == 1)
            first, second = (each for each in quorum.places.values() if each is not other)

            def cut(what: str, *cuts: tuple[Place, Place]) -> float:
                """The longest wait for a topic while these ways are cut. All is well then."""
                quorum.settle()
                relays.cut(*((str(one.number), str(to.number)) for one, to in cuts))
                began, waits = time.monotonic(), list[float]()
                while time.monotonic() - began < CUT_SECONDS:
                    waits.append(quorum.create(f"{what}-{len(waits)}"))
                quorum.begun_ms = time.time_ns() // 1_000_000
                relays.heal()
                quorum.settle()
                return max(waits)

            with quorum.view.producing("load") as writer:
                quorum.lead(first)
                epoch = quorum.described().leader_epoch
                for what, cuts in (
                    ("from-the-leader", both_ways(other, first)),
                    ("from-the-follower", both_ways(other, second)),
                    ("from-both", both_ways(other, first) + both_ways(other, second)),
                    ("to-the-leader", [(other, first)]),
                    ("by-the-leader", [(first, other)]),
                    ("beside-it", both_ways(first, second)),
                ):
                    assert cut(what, *cuts) < LONGEST_GAP, what
                    assert quorum.described().leader_epoch == epoch, what
                quorum.lead(other)
                epoch = quorum.described().leader_epoch
                for place in (first, second):
                    assert cut(f"leads-{place.number}", *both_ways(other, place)) < LONGEST_GAP
                    assert quorum.described().leader_epoch == epoch, place.number
                alone = both_ways(other, first) + both_ways(other, second)
                assert cut("leads-alone", *alone) < LONGEST_GAP + 3
                assert quorum.leader is not other
            quorum.view.check_once(writer)
        finally:
            quorum.end()


def both_ways(one: Place, other: Place) -> list[tuple[Place, Place]]:
    return [(one, other), (other, one)]


@pytest.mark.long
def test_a_voter_of_ours_whose_disk_takes_no_more_ends(new_quorum: MixedQuorum) -> None:
    """QU 8.8: as follower and as leader; the others go on at once, and it comes back."""
    quorum = new_quorum.start(JAVA, JAVA, OURS)
    ours, gaps = quorum.places[3], list[float]()
    with quorum.view.producing("load") as writer:
        for number in range(2):
            quorum.settle()
            if number:
                quorum.lead(ours)
            elif quorum.leader is ours:
                ours.kill()
                quorum.create("another-leads")
                ours.spawn()
                quorum.settle()
            assert ours.member is not None and ours.member.process is not None
            resource.prlimit(ours.member.process.pid, resource.RLIMIT_FSIZE, (1, 1))
            gaps.append(quorum.create(f"disk-{number}"))
            ours.member.process.wait(30)
            ours.kill()
            ours.spawn()
            quorum.settle()
            quorum.view.until(writer.progress(), "records go on")
    print([round(each, 2) for each in gaps])
    quorum.view.check_once(writer)
    assert max(gaps) < LONGEST_GAP


@pytest.mark.long
def test_both_sorts_of_active_controllers_judge_features_alike(new_quorum: MixedQuorum) -> None:
    """QU 8.12: each feature, level and kind of change, with a broker registered that lacks levels
    of some; the codes are equal.
    """
    quorum = new_quorum.start(JAVA, OURS, OURS)
    quorum.settle()
    older = BrokerRegistrationRequest(
        broker_id=99,
        cluster_id=CLUSTER_ID,
        incarnation_id=bytes(15) + b"9",
        listeners=[
            BrokerRegistrationRequestListener(name="PLAINTEXT", host="127.0.0.1", port=free_port())
        ],
        features=[
            BrokerRegistrationRequestFeature(
                name=name, min_supported_version=least, max_supported_version=most
            )
            for name, least, most in (
                ("metadata.version", 7, 30),
                ("transaction.version", 0, 2),
                ("eligible.leader.replicas.version", 0, 1),
                ("kraft.version", 0, 1),
            )
        ],
        log_dirs=[bytes(15) + b"\xff"],
    )

    def registered() -> bool:
        at = ("127.0.0.1", quorum.leader.port)
        answer = ask(at, older, 4, BrokerRegistrationResponse)
        return answer.error_code == 0

    quorum.view.until(registered, "a broker that lacks levels is registered")
    asked = [
        FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
        for name, most in (
            ("metadata.version", 31),
            ("transaction.version", 3),
            ("eligible.leader.replicas.version", 2),
            ("group.version", 2),
            ("share.version", 2),
            ("streams.version", 2),
            ("kraft.version", 2),
            ("no.such.feature", 1),
        )
        for level in range(-1 if most < 9 else 24, most + 1)
        for kind in (1, 2, 3)
    ]

    def judged() -> dict[str, tuple[int, list[int]]]:
        found = {}
        for each in asked:
            request = UpdateFeaturesRequest(feature_updates=[each], validate_only=True)
            answer = ask(
                next(iter(quorum.brokers.values())).address, request, 1, UpdateFeaturesResponse
            )
            codes = [result.error_code for result in answer.results]
            found[f"{each.feature} {each.max_version_level} {each.upgrade_type}"] = (
                answer.error_code,
                codes,
            )
        return found

    quorum.lead(quorum.places[1])
    javas = judged()
    quorum.lead(quorum.places[2])
    ours = judged()
    assert len({code for code, _ in javas.values()}) > 1
    differing = {name: (javas[name], ours[name]) for name in javas if javas[name] != ours[name]}
    assert not differing


def test_a_static_quorum_of_both_becomes_one_of_records(tmp_path: Path) -> None:
    """QU 8.1, 8.10: `kafka-features upgrade --feature kraft.version=1`."""
    require("kafka-tools", "kafka-raft")
    quorum = MixedQuorum(tmp_path, is_static=True)
    try:
        quorum.start(JAVA, OURS, OURS)
        quorum.settle()
        command = ("upgrade", "--feature", "kraft.version=1")
        features = "org.apache.kafka.tools.FeatureCommand"

        def is_upgraded() -> bool:
            server = ("--bootstrap-server", quorum.view.bootstrap)
            done = subprocess.run(java(features, *server, *command), capture_output=True, text=True)
            return done.returncode == 0

        quorum.view.until(is_upgraded, "kraft.version is 1")
        assert len(set(quorum.voters.values())) == 3
        for _ in range(2):
            leader = quorum.leader
            leader.kill()
            assert quorum.create(f"without-{leader.number}") < LONGEST_GAP + 3
            leader.spawn()
            quorum.settle()
    finally:
        quorum.end()


def test_a_java_broker_follows_controllers_of_ours(new_quorum: MixedQuorum) -> None:
    """QU 4.18, 8.13: it knows bootstrap addresses only, and finds the leader in the voters."""
    quorum = new_quorum.start(OURS, OURS, OURS)
    address = f"127.0.0.1:{free_port()}"
    broker = JavaNode(
        quorum.directory / "broker-13",
        {
            "process.roles": "broker",
            "node.id": "13",
            "listeners": f"PLAINTEXT://{address}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "controller.quorum.bootstrap.servers": quorum.shared[
                "controller.quorum.bootstrap.servers"
            ],
        },
    )
    broker.format_a_broker()
    broker.spawn()
    try:
        quorum.view.until(
            lambda: 13 in quorum.view.admin.list_topics(timeout=5).brokers, "it is unfenced"
        )
        quorum.settle()
        for number in range(2):
            name = f"on-13-{number}"
            made = NewTopic(name, num_partitions=1, replica_assignment=[[13]])
            quorum.view.admin.create_topics([made])[name].result(30)
            with View(address).producing(name) as writer:
                View(address).until(writer.progress(), "records are written to it")
            View(address).check_once(writer)
            leader = quorum.leader
            leader.kill()
            leader.spawn()
            quorum.settle()
    finally:
        broker.kill()
