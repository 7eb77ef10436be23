"""Rebuilding a controller's metadata: what is taken, what is refused, and that a controller and
its brokers go on from it.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from tests.cluster.controller_fixture import ControllerFixture, MemberSide, served
from tests.cluster.fixtures import CLUSTER_ID, Fixture
from twisted_broker.cluster.metadata_recovery import (
    EPOCHS_AHEAD,
    CannotRecover,
    Source,
    Target,
    most_advanced,
    read_source,
    recover,
)
from twisted_broker.log.log_directory import LogDirMismatch
from twisted_broker.log.memory import MemoryFileSystem
from twisted_broker.log.meta_properties import (
    MetaProperties,
    read_meta_properties,
    write_meta_properties,
)
from twisted_broker.wire.records import iterate_batches

NAME = "__cluster_metadata-0"
LOG = f"{0:020d}.log"
OTHER_ID = "b3RoZXItY2x1c3Rlci1oZQ"


def full(**settings: str) -> ControllerFixture:
    fixture = served(
        {
            "metadata.max.idle.interval.ms": "0",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )
    fixture.join(1)
    fixture.create_topic("t", 30)
    fixture.advance(0.5)
    fixture.create_topic("u", 3)
    write_meta_properties(fixture.files, "/data", MetaProperties(CLUSTER_ID, 1, b"d" * 16))
    return fixture


def copied(fixture: Fixture, to: str) -> None:
    """The fixture's directory, as a broker's copy elsewhere on the disk."""
    for path, node in list(fixture.files.nodes.items()):
        if path.startswith(f"/data/{NAME}/") and not path.endswith("quorum-state"):
            fixture.files.make_directories(f"{to}/{NAME}")
            fixture.files.nodes[to + path.removeprefix("/data")] = node
    write_meta_properties(fixture.files, to, MetaProperties(CLUSTER_ID, 2, b"c" * 16))


def run(files: MemoryFileSystem, source: Source, **target: Any) -> Any:
    numbers = count(1)
    return recover(
        files,
        source,
        Target("/new", **target),
        0,
        lambda length: next(numbers).to_bytes(length, "big"),
    )


def controller_at(fixture: ControllerFixture, directory: str) -> ControllerFixture:
    """A new process of the controller on another directory, reachable."""
    fixture.crash()
    fixture.directory = directory
    fixture.controller = fixture.open()
    fixture.start()
    fixture.serve()
    return fixture


@pytest.mark.parametrize(
    "settings", [{}, {"metadata_log_max_record_bytes_between_snapshots": "2000"}]
)
def test_a_controller_goes_on_from_a_brokers_log(settings: dict[str, str]) -> None:
    """The image is the same, the epoch above all seen; members follow on without a word."""
    fixture = full(**settings)
    copied(fixture, "/broker")
    member = MemberSide(fixture, 2).follow()
    before, end = fixture.controller.image, fixture.controller.log.end_offset
    source = read_source(fixture.files, "/broker")
    assert (source.snapshot is not None) == bool(settings)
    assert (source.end_offset, source.image.topics_by_name, source.cluster_id) == (
        end,
        before.topics_by_name,
        CLUSTER_ID,
    )
    done = run(fixture.files, source)
    assert (done.directory, done.cluster_id, done.node_id, done.aside) == (
        f"/new/{NAME}",
        CLUSTER_ID,
        1,
        (),
    )
    found = read_meta_properties(fixture.files, "/new")
    assert found is not None and (found.cluster_id, found.node_id) == (CLUSTER_ID, 1)
    controller_at(fixture, "/new")
    assert fixture.controller.epoch == 1 + EPOCHS_AHEAD + 1
    assert (
        fixture.controller.image.topics_by_name == before.topics_by_name
        and fixture.controller.image.brokers == before.brokers
    )
    fixture.create_topic("after")
    fixture.pass_time(5.0)
    assert member.ended == [] and member.observer.image == fixture.controller.image
    assert member.observer.leader_epoch == fixture.controller.epoch


def test_a_controller_goes_on_from_a_snapshot_file() -> None:
    """Alone it does not say whose it is."""
    fixture = full(metadata_log_max_record_bytes_between_snapshots="2000")
    (snapshot,) = fixture.controller.log.snapshots
    fixture.files.make_directories("/backup")
    fixture.files.nodes[f"/backup/{snapshot.file_name}"] = fixture.files.nodes[
        fixture.controller.log.snapshot_path(snapshot)
    ]
    source = read_source(fixture.files, f"/backup/{snapshot.file_name}")
    with pytest.raises(CannotRecover, match="--cluster-id"):
        run(fixture.files, source)
    run(fixture.files, source, cluster_id=CLUSTER_ID)
    controller_at(fixture, "/new")
    assert sorted(fixture.controller.image.topics_by_name) == ["t"]
    assert fixture.controller.log.log.log_start_offset == snapshot.end_offset


def test_the_most_advanced_log_is_taken() -> None:
    """Of the newest epoch the longest; never of several clusters."""
    fixture = full()
    copied(fixture, "/one")
    fixture.files.nodes[f"/one/{NAME}/{LOG}"] = frozen = type(
        fixture.files.nodes[f"/one/{NAME}/{LOG}"]
    )()
    frozen.data = bytearray(fixture.files.nodes[f"/data/{NAME}/{LOG}"].data)
    frozen.length = len(frozen.data)
    file = fixture.files.nodes[f"/one/{NAME}/replication-offset-checkpoint"]
    held = fixture.files.nodes[f"/one/{NAME}/replication-offset-checkpoint"] = type(file)()
    held.data, held.length = bytearray(file.data), file.length
    fixture.create_topic("newer")
    copied(fixture, "/two")
    one, two = read_source(fixture.files, "/one"), read_source(fixture.files, f"/two/{NAME}")
    assert one.end_offset < two.end_offset
    assert most_advanced([one, two]) is most_advanced([two, one]) is two
    write_meta_properties(fixture.files, "/one", MetaProperties(OTHER_ID, 2, b"c" * 16))
    with pytest.raises(CannotRecover, match="several clusters"):
        most_advanced([read_source(fixture.files, "/one"), two])


def test_a_damaged_source_is_not_taken() -> None:
    fixture = full()
    copied(fixture, "/broker")
    fixture.files.nodes[f"/broker/{NAME}/{LOG}"].data[300] ^= 1
    with pytest.raises(CannotRecover, match=f"/broker is damaged: /broker/{NAME}/{LOG} at byte"):
        read_source(fixture.files, "/broker")
    fixture.files.make_directories("/nothing")
    with pytest.raises(CannotRecover, match="holds no metadata"):
        read_source(fixture.files, "/nothing")


@pytest.mark.parametrize("at", [5, 15, 40])
def test_a_log_that_ends_in_damage_above_its_durable_end_is_not_taken_without_a_word(
    at: int,
) -> None:
    """A copy's durable end lags: what lies behind the damage was committed. It is used up
    to there only when that is wanted.
    """
    fixture = full()
    copied(fixture, "/broker")
    log = fixture.files.nodes[f"/broker/{NAME}/{LOG}"].data
    fixture.files.remove(f"/broker/{NAME}/replication-offset-checkpoint")
    place = [batch.offset for batch in iterate_batches(bytes(log))][5]
    log[place + at] ^= 1
    with pytest.raises(CannotRecover, match=f"{LOG} at byte {place} .*--up-to-damage"):
        read_source(fixture.files, "/broker")
    source = read_source(fixture.files, "/broker", up_to_damage=True)
    assert len(b"".join(source.batches)) == place and f"at byte {place}" in source.damage
    run(fixture.files, source)
    controller_at(fixture, "/new")
    assert fixture.controller.image.features == source.image.features != {}


def test_a_torn_tail_of_a_source_is_named() -> None:
    """It cannot be told from a flipped bit in the last batch."""
    fixture = full()
    copied(fixture, "/broker")
    assert read_source(fixture.files, "/broker").damage == ""
    fixture.files.remove(f"/broker/{NAME}/replication-offset-checkpoint")
    log = fixture.files.nodes[f"/broker/{NAME}/{LOG}"].data
    place = [batch.offset for batch in iterate_batches(bytes(log))][-1]
    log[-1] ^= 1
    source = read_source(fixture.files, "/broker")
    assert (
        f"{LOG} at byte {place}" in source.damage and f"{len(log) - place} bytes" in source.damage
    )


def test_the_id_is_there_before_the_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash in between must leave no metadata that seems to be of no cluster."""
    fixture = full()
    copied(fixture, "/broker")
    source = read_source(fixture.files, "/broker")
    rename = fixture.files.rename

    def crash(source: str, target: str) -> None:
        if target == f"/new/{NAME}":
            raise OSError("the power is gone")
        rename(source, target)

    monkeypatch.setattr(fixture.files, "rename", crash)
    with pytest.raises(OSError, match="power"):
        run(fixture.files, source)
    found = read_meta_properties(fixture.files, "/new")
    assert found is not None and found.cluster_id == CLUSTER_ID
    monkeypatch.undo()
    run(fixture.files, source)
    controller_at(fixture, "/new")


def test_a_target_that_is_not_empty_is_refused_or_kept() -> None:
    """Nothing is changed by the refusal; `move_aside` keeps every byte under another name."""
    fixture = full()
    copied(fixture, "/broker")
    source = read_source(fixture.files, "/broker")
    run(fixture.files, source)
    written = bytes(fixture.files.nodes[f"/new/{NAME}/{LOG}"].data)
    before = {path: bytes(node.data) for path, node in fixture.files.nodes.items()}
    with pytest.raises(CannotRecover, match=r"not empty.*--move-aside"):
        run(fixture.files, source)
    assert {path: bytes(node.data) for path, node in fixture.files.nodes.items()} == before
    (aside,) = run(fixture.files, source, move_aside=True).aside
    assert aside.startswith(f"/new/{NAME}.") and aside.endswith("-stray")
    assert (
        bytes(fixture.files.nodes[f"{aside}/{LOG}"].data)
        == written
        == bytes(fixture.files.nodes[f"/new/{NAME}/{LOG}"].data)
    )


def test_a_directory_that_founded_another_cluster_is_taken_back() -> None:
    """An empty controller founded a cluster of its own: its metadata and its id are kept aside."""
    fixture = full()
    copied(fixture, "/broker")
    fixture.files.make_directories("/new")
    write_meta_properties(fixture.files, "/new", MetaProperties(OTHER_ID, 1, b"n" * 16))
    source = read_source(fixture.files, "/broker")
    with pytest.raises(CannotRecover, match=OTHER_ID):
        run(fixture.files, source)
    run(fixture.files, source, move_aside=True)
    found = read_meta_properties(fixture.files, "/new")
    assert found is not None and (found.cluster_id, found.node_id) == (CLUSTER_ID, 1)


def test_what_contradicts_itself_is_refused() -> None:
    fixture = full()
    copied(fixture, "/broker")
    source = read_source(fixture.files, "/broker")
    with pytest.raises(CannotRecover, match=f"belongs to cluster {CLUSTER_ID}, not to {OTHER_ID}"):
        run(fixture.files, source, cluster_id=OTHER_ID)
    fixture.files.make_directories("/new")
    write_meta_properties(fixture.files, "/new", MetaProperties(CLUSTER_ID, 5, b"n" * 16))
    with pytest.raises(CannotRecover, match="belongs to node 5, not to 1"):
        run(fixture.files, source, node_id=1)
    release = fixture.files.lock("/new/.lock")
    with pytest.raises(LogDirMismatch, match="in use"):
        run(fixture.files, source)
    release()
    assert run(fixture.files, source).node_id == 5


def test_a_recovery_that_was_interrupted_is_begun_anew() -> None:
    """Until the rename nothing has the name; what it left is no obstacle."""
    fixture = full()
    copied(fixture, "/broker")
    fixture.files.make_directories(f"/new/{NAME}.recovering")
    fixture.files.open(f"/new/{NAME}.recovering/{LOG}", create=True).write_at(0, (b"half",))
    run(fixture.files, read_source(fixture.files, "/broker"))
    assert sorted(fixture.files.listdir("/new")) == [".lock", NAME, "meta.properties"]
    assert bytes(fixture.files.nodes[f"/new/{NAME}/{LOG}"].data) == bytes(
        fixture.files.nodes[f"/broker/{NAME}/{LOG}"].data
    )
