"""What a controller finds when it opens its metadata: a torn tail is cut, damage is refused and
nothing is changed.
"""

from __future__ import annotations

import pytest

from tests.cluster.fixtures import Fixture, StalledWorker
from tests.replication.fixtures import batch, make_log
from twisted_broker.cluster import controller, metadata_check
from twisted_broker.cluster.metadata_check import (
    Applied,
    MetadataDamage,
    check_logs,
    check_metadata,
    known_end,
    read_applied,
    read_durable_end,
)
from twisted_broker.cluster.metadata_log import format_metadata
from twisted_broker.cluster.snapshots import list_snapshots
from twisted_broker.interfaces import TopicPartition
from twisted_broker.log.checkpoints import (
    HIGH_WATERMARK,
    metadata_rows,
    read_whole,
    write_offsets,
)
from twisted_broker.log.memory import MemoryFileSystem
from twisted_broker.wire.records import BatchBuilder, iterate_batches

DIRECTORY = "/data/__cluster_metadata-0"
LOG = f"{DIRECTORY}/{0:020d}.log"
MARK = f"{DIRECTORY}/replication-offset-checkpoint"


def served(**settings: str) -> Fixture:
    fixture = Fixture(
        settings={name.replace("_", "."): value for name, value in settings.items()}
    ).start()
    fixture.join(1)
    for number in range(5):
        fixture.create_topic(f"t{number}", 3)
    return fixture


def with_snapshot() -> Fixture:
    fixture = served(
        metadata_log_max_record_bytes_between_snapshots="1500", metadata_max_idle_interval_ms="0"
    )
    fixture.advance(0.5)
    assert list_snapshots(fixture.files, DIRECTORY)
    fixture.create_topic("behind", 3)
    return fixture


def content(fixture: Fixture) -> dict[str, bytes]:
    return {
        path: bytes(node.data)
        for path, node in fixture.files.nodes.items()
        if path.startswith(DIRECTORY)
    }


def refused(fixture: Fixture) -> MetadataDamage:
    """The controller does not start, and changes nothing."""
    before = content(fixture)
    with pytest.raises(MetadataDamage) as caught:
        fixture.open()
    assert content(fixture) == before
    assert "replog metadata recover --from A_BROKERS_LOG_DIR --to /data" in str(caught.value)
    return caught.value


def flip(files: MemoryFileSystem, path: str, position: int) -> None:
    files.nodes[path].data[position] ^= 1


def places(files: MemoryFileSystem, path: str) -> list[tuple[int, int]]:
    """(position, base offset) of each batch."""
    return [
        (batch.offset, batch.base_offset)
        for batch in iterate_batches(read_whole(files, path) or b"")
    ]


@pytest.mark.parametrize("row", [0, 1, 5, -2, -1])
def test_a_flipped_bit_in_what_was_durable_is_refused(row: int) -> None:
    """The file, the byte and the offset are named. Also in the last batch: its sync was done, so
    it is no torn tail.
    """
    fixture = served()
    position, offset = places(fixture.files, LOG)[row]
    flip(fixture.files, LOG, position + 40)
    damage = refused(fixture)
    assert (damage.path, damage.position, damage.offset) == (LOG, position, offset)
    assert f"{LOG} at byte {position} (offset {offset})" in str(damage)


def test_a_log_that_is_shorter_than_it_was_durable_is_refused() -> None:
    """An older copy of the segment, or one cut at a batch's end, reads well by itself."""
    fixture = served()
    position, offset = places(fixture.files, LOG)[-3]
    fixture.files.open(LOG).truncate(position)
    damage = refused(fixture)
    assert (
        f"ends at offset {offset}, but was durable up to {fixture.controller.log.end_offset}"
        in str(damage)
    )


def test_a_record_that_nobody_knows_is_refused() -> None:
    """A whole batch of a newer version's record is no damage that the check finds: the replay names
    the offset.
    """
    fixture = served()
    log = fixture.controller.log
    builder = BatchBuilder(base_offset=log.end_offset, leader_epoch=log.epoch)
    builder.append(0, None, bytes((1, 125, 0)))
    file = fixture.files.open(LOG)
    file.write_at(file.size(), (builder.build(),))
    with pytest.raises(MetadataDamage, match=r"the log is not understood.*type 125") as caught:
        fixture.restart()
    assert caught.value.offset == log.end_offset


def test_a_lost_segment_is_refused() -> None:
    fixture = served()
    fixture.files.remove(LOG)
    refused(fixture)


@pytest.mark.parametrize("damaged", [False, True])
def test_the_first_of_several_breaks_is_named(damaged: bool) -> None:
    """The second of four segments is gone or damaged: what lies behind it follows nothing, and is
    not what is to be repaired.
    """
    fixture = served()
    for number in range(3):
        fixture.controller.log.log.roll(fixture.now())
        fixture.create_topic(f"in-segment-{number}", 3)
    segments = sorted(path for path in content(fixture) if path.endswith(".log"))
    assert len(segments) == 4
    if damaged:
        flip(fixture.files, segments[1], 40)
        expected = (segments[1], 0)
    else:
        fixture.files.remove(segments[1])
        expected = (segments[2], -1)
    damage = refused(fixture)
    assert (damage.path, damage.position) == expected


def test_a_hole_between_snapshot_and_log_is_refused() -> None:
    fixture = with_snapshot()
    fixture.controller.log.log.roll(fixture.now())
    fixture.create_topic("in the next segment".replace(" ", "-"), 3)
    first, second = sorted(
        path for path in fixture.files.nodes if path.startswith(DIRECTORY) and path.endswith(".log")
    )
    fixture.files.remove(first)
    assert refused(fixture).path == second


@pytest.mark.parametrize("position", [5, 100, -1])
def test_a_snapshot_that_cannot_be_read_is_refused(position: int) -> None:
    fixture = with_snapshot()
    (snapshot,) = list_snapshots(fixture.files, DIRECTORY)
    path = f"{DIRECTORY}/{snapshot.file_name}"
    flip(fixture.files, path, position)
    assert refused(fixture).path == path


def test_a_lost_snapshot_is_refused() -> None:
    fixture = with_snapshot()
    (snapshot,) = list_snapshots(fixture.files, DIRECTORY)
    fixture.files.remove(f"{DIRECTORY}/{snapshot.file_name}")
    refused(fixture)


FIELDS = {"base offset": [0, 5, 7], "length": [8, 11], "leader epoch": [12, 14, 15]}
"""positions in a batch that its CRC does not cover"""
OUTSIDE_CRC = [(field, at) for field, positions in FIELDS.items() for at in positions]


@pytest.mark.parametrize("bit", [0, 6])
@pytest.mark.parametrize(("field", "at"), OUTSIDE_CRC)
@pytest.mark.parametrize("row", [0, 1, 5, -2, -1])
def test_a_flipped_bit_outside_the_crc_is_refused(row: int, field: str, at: int, bit: int) -> None:
    """Invariant 3: also in the last batch; the LeaderChange that begins the epoch is the first."""
    fixture = served()
    position, offset = places(fixture.files, LOG)[row]
    fixture.files.nodes[LOG].data[position + at] ^= 1 << bit
    damage = refused(fixture)
    assert (damage.path, damage.position, damage.offset) == (LOG, position, offset)


@pytest.mark.parametrize("at", [0, 4, 6, 12, 13])
@pytest.mark.parametrize("row", [0, 1, 5, -2, -1])
def test_a_flipped_bit_outside_the_crc_poisons_nothing_that_is_known(row: int, at: int) -> None:
    """What is known of damaged metadata is what the durable end and the batches before the damage
    say: no offset or epoch that nobody will ever reach.
    """
    fixture = served()
    end, position = fixture.controller.log.end_offset, places(fixture.files, LOG)[row][0]
    flip(fixture.files, LOG, position + at)
    assert known_end(fixture.files, DIRECTORY) <= (end, 1)
    fixture.files.remove(MARK)
    assert known_end(fixture.files, DIRECTORY) <= (end, 1)


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_in_the_durable_end_never_raises_it(bit: int) -> None:
    """It would be an offset that the log never had."""
    fixture = served()
    end, content = fixture.controller.log.end_offset, fixture.files.nodes[MARK].data
    for position in range(len(content)):
        content[position] ^= 1 << bit
        assert (read_durable_end(fixture.files, DIRECTORY) or 0) <= end
        content[position] ^= 1 << bit
    assert read_durable_end(fixture.files, DIRECTORY) == end


def test_a_segment_that_a_snapshot_replaced_may_be_damaged() -> None:
    """A crash left it behind. It is not looked at, and nothing behind it is lost."""
    fixture = with_snapshot()
    end, image = fixture.controller.log.end_offset, fixture.controller.image
    left = f"{DIRECTORY}/{0:020d}.log"
    assert not fixture.files.exists(left) and fixture.controller.log.log.log_start_offset > 0
    old = served()
    fixture.files.nodes[left] = old.files.nodes[LOG]
    flip(fixture.files, left, 100)
    again = fixture.open()
    assert again.log.end_offset == end and again.log.replay().topics_by_name == image.topics_by_name


@pytest.mark.parametrize("at", [5, 15, 40])
def test_what_was_never_synced_may_be_torn_anywhere(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss of power keeps any part of what was not synced: a bad batch above the durable end is
    truncated, with good ones behind it, for nobody was told of them. It is said what went.
    """
    worker = StalledWorker()
    fixture = Fixture(worker).start()
    worker.run()
    worker.run()
    durable = fixture.controller.log.high_watermark
    for broker in (1, 2, 3):
        fixture.send("broker_registration", fixture.registration(broker, bytes([broker]) * 16), 4)
    torn = next(position for position, offset in places(fixture.files, LOG) if offset >= durable)
    size = fixture.files.size(LOG)
    flip(fixture.files, LOG, torn + at)
    assert read_durable_end(fixture.files, DIRECTORY) == durable
    with pytest.raises(MetadataDamage, match="with good ones behind it"):
        check_metadata(fixture.files, DIRECTORY, is_observer=True)  # all of a copy was committed
    again = fixture.open().log
    image = again.replay()
    assert image.offset == durable - 1 and not image.brokers
    assert (again.torn.path, again.torn.position, again.torn.size) == (LOG, torn, size - torn)
    assert fixture.files.size(LOG) == torn and again.end_offset == durable
    said: list[str] = []
    monkeypatch.setattr(
        controller._logger, "warn", lambda text, **fields: said.append(text.format(**fields))
    )
    flip(fixture.files, LOG, fixture.files.size(LOG) - 1)  # as if it had not been synced either
    fixture.files.remove(MARK)
    fixture.restart()
    (line,) = said
    assert LOG in line and "never synced" in line


@pytest.mark.parametrize(("row", "accepted"), [(-1, True), (-2, False), (3, False)])
def test_without_a_durable_end_good_batches_behind_a_bad_one_are_damage(
    row: int, accepted: bool
) -> None:
    """Directories of Apache Kafka, and of older versions, have no durable end: there only the last
    batch can be a torn tail.
    """
    fixture = served()
    fixture.files.remove(MARK)
    position, offset = places(fixture.files, LOG)[row]
    flip(fixture.files, LOG, position + 40)
    if accepted:
        assert fixture.open().log.replay().offset == offset - 1
    else:
        refused(fixture)


def test_a_long_log_is_checked_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller's start leaves turns to others all along, not in its first batches only."""
    fixture = served()
    batches = len(places(fixture.files, LOG))
    monkeypatch.setattr(metadata_check, "BATCHES_PER_STEP", 2)
    pauses = list(metadata_check.check_in_steps(fixture.files, DIRECTORY, False))
    assert batches >= 6 and len(pauses) == batches // 2


def test_a_clean_stop_syncs_all_of_it() -> None:
    """Also what no sync has reported yet."""
    fixture = served()
    fixture.controller.stop()
    assert read_durable_end(fixture.files, DIRECTORY) == fixture.controller.log.end_offset
    assert known_end(fixture.files, DIRECTORY) == (fixture.controller.log.end_offset, 1)


def test_after_a_restart_the_high_watermark_is_at_the_durable_end() -> None:
    """Readers are never told of less than they were told before, however long the first sync
    takes.
    """
    fixture = served()
    high_watermark = fixture.controller.log.high_watermark
    fixture.worker = StalledWorker()
    fixture.restart()
    assert fixture.controller.log.high_watermark == high_watermark


def test_a_new_controllers_metadata_comes_before_its_id() -> None:
    """A crash while a cluster is founded is no lost directory; one that bears an id and has no
    metadata is.
    """
    files = MemoryFileSystem()
    files.make_directories("/data")
    with pytest.raises(MetadataDamage, match="cluster X is gone"):
        format_metadata(files, "/data", "X", is_new=False)
    assert files.listdir("/data") == []
    format_metadata(files, "/data", "X", is_new=True)
    assert read_durable_end(files, DIRECTORY) == 0
    format_metadata(files, "/data", "X", is_new=False)


def test_what_kafka_storage_format_made_is_no_lost_directory() -> None:
    """The id is there before any metadata. Once a node ran on it, its metadata must be there."""
    files = MemoryFileSystem()
    files.make_directories("/data")
    for name in ("meta.properties", "bootstrap.checkpoint", ".lock"):
        files.open(f"/data/{name}", create=True)
    with pytest.raises(MetadataDamage, match=r"cluster X is gone.*or remove .lock there"):
        format_metadata(files, "/data", "X", is_new=False, was_started=True)
    format_metadata(files, "/data", "X", is_new=False, was_started=False)
    assert read_durable_end(files, DIRECTORY) == 0
    files.make_directories("/kafkas/t-0")
    with pytest.raises(MetadataDamage, match="cluster X is gone"):
        format_metadata(files, "/kafkas", "X", is_new=False, was_started=False)


def test_metadata_that_lies_in_another_directory_is_not_gone() -> None:
    """`log.dirs` were put in another order."""
    fixture = served()
    fixture.files.make_directories("/first")
    with pytest.raises(MetadataDamage, match=r"is in /data: put that first in log\.dirs") as caught:
        format_metadata(fixture.files, "/first", "X", is_new=False, others=["/first", "/data"])
    assert "gone" not in str(caught.value)


def test_metadata_that_ends_below_what_the_node_applied_is_refused() -> None:
    """A copy of yesterday is whole in itself: the checkpoints beside the logs contradict it; of
    two directories the one that was not put back.
    """
    fixture = served()
    end = fixture.controller.log.end_offset
    path = "/more/replication-offset-checkpoint"
    for directory, offset in (("/old", end - 3), ("/more", end)):
        fixture.files.make_directories(directory)
        rows = metadata_rows(offset) | {TopicPartition("t", 0): 1 << 40}
        write_offsets(fixture.files, directory, HIGH_WATERMARK, rows)
    applied = read_applied(fixture.files, ["/data", "/old", "/more"])
    assert applied == (end, path)
    assert check_metadata(fixture.files, DIRECTORY, False, applied).torn is None
    with pytest.raises(MetadataDamage, match=f"ends at offset {end}, .* up to {end + 1} .{path}"):
        check_metadata(fixture.files, DIRECTORY, False, Applied(end + 1, path))


def test_logs_of_a_newer_leader_epoch_contradict_the_metadata() -> None:
    """Where no checkpoint says how far it was applied. An epoch without records does not."""
    fixture = served()
    image = fixture.controller.image
    topic = image.topics_by_name["t1"]
    log = make_log(files=fixture.files, tp=TopicPartition("t1", 2), directory="/logs")
    log.topic_id = topic.id
    known = topic.partitions[2].leader_epoch
    log.append_as_leader(batch(1), known, fixture.wall_ms)
    check_logs(image, [log])
    log.leader_epochs.assign(known + 3, log.log_end_offset)
    check_logs(image, [log])
    log.append_as_leader(batch(1), known + 3, fixture.wall_ms)
    with pytest.raises(
        MetadataDamage, match=f"/logs/t1-2: .*epoch {known + 3},.*epoch {known} .*replog metadata"
    ) as alone:
        check_logs(image, [log])
    assert "move /logs/t1-2 away" in str(alone.value) and "\n" not in str(alone.value)
    log.topic_id = b"another topic id"
    check_logs(image, [log])


@pytest.mark.parametrize("search_bytes", [*range(70, 100), 1 << 16])
def test_a_good_batch_behind_damage_is_found_wherever_it_is(
    search_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tells damage in the middle from a torn tail, which may be truncated."""
    monkeypatch.setattr(metadata_check, "_SEARCH_BYTES", search_bytes)
    good = b"".join(set_base(batch(1), offset) for offset in (40, 41, 42))
    size = len(good) // 3
    for torn in (1, 16, 61, 90):
        files = MemoryFileSystem()
        file = files.open("/log", create=True)
        file.write_at(0, (good[:size], b"\2" * torn, good[size:]))
        end, damage = file.size(), size
        assert metadata_check._goes_on(file, damage, end, 41)
        assert metadata_check._goes_on(file, damage, end - size, 41)
        assert metadata_check._goes_on(file, damage, end, 42)
        assert not metadata_check._goes_on(file, damage, end, 43)
        assert not metadata_check._goes_on(file, damage, damage + torn, 0)


def set_base(data: bytes, offset: int) -> bytes:
    return offset.to_bytes(8, "big") + data[8:]
