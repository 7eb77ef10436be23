"""Descriptions, what they refuse, and the source text made from them."""

import struct
import subprocess
import sys
from pathlib import Path

import pytest
from mypy import api as mypy

import twisted_broker
from tests.wire.sampling import Blob
from twisted_broker.wire import fields
from twisted_broker.wire.messages.cluster import DescribeTopicPartitionsResponse
from twisted_broker.wire.messages.configs import DescribeConfigsResponse
from twisted_broker.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
    ReplicaState,
)
from twisted_broker.wire.messages.group_records import (
    ClassicMemberMetadata,
    ConsumerGroupMemberMetadataValue,
)
from twisted_broker.wire.messages.groups import JoinGroupRequest
from twisted_broker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from twisted_broker.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from twisted_broker.wire.messages.metadata_records import PartitionChangeRecord
from twisted_broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from twisted_broker.wire.primitives import FEW_ELEMENTS, NULL_UUID
from twisted_broker.wire.schema import (
    Message,
    Request,
    VersionRange,
    array,
    decode,
    emptied_in_steps,
    encode,
    encode_parts,
    int32,
    smallest_size,
    source_text,
    string,
    version_range,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0-13", (0, 13)), ("4+", (4, 32767)), ("2", (2, 2)), ("none", (0, -1)), (None, (0, -1))],
)
def test_version_ranges(text: str | None, expected: tuple[int, int]) -> None:
    assert version_range(text) == VersionRange(*expected)
    assert not version_range("none").holds(0)


def test_known_bytes() -> None:
    """A request for one offset, spelled out."""
    partition = ListOffsetsPartition(partition_index=3, timestamp=-2)
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[partition])]
    )
    assert (
        encode(request, 1).hex()
        == "ffffffff" + "00000001" + "000174" + "00000001" + "00000003" + "fffffffffffffffe"
    )
    assert (
        encode(request, 6).hex()
        == "ffffffff"
        + "00"
        + "02"
        + "0274"
        + "02"
        + "00000003"
        + "ffffffff"
        + "fffffffffffffffe"
        + "00"
        + "00"
        + "00"
    )


def test_a_message_is_compared_and_printed_by_its_fields() -> None:
    """Bytes are only counted: they may be a password."""
    assert MetadataRequest(topics=None) != MetadataRequest(topics=[])
    assert MetadataRequest(topics=None) == MetadataRequest(topics=None)
    assert ReplicaState() != ListOffsetsPartition()
    assert repr(ReplicaState(replica_id=3)) == "ReplicaState(replica_id=3, replica_epoch=-1)"
    assert repr(Blob(data=b"\0alice\0secret")) == "Blob(data=<13 bytes>)"
    assert (
        repr(PartitionProduceData(records=[b"a", b"bc"]))
        == "PartitionProduceData(index=0, records=<3 bytes>)"
    )


def test_arguments_are_keywords_that_exist() -> None:
    """A mistyped field is an error when the message is made, and so is one set later."""
    with pytest.raises(TypeError):
        ReplicaState(replica=3)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        ReplicaState().replica = 3  # type: ignore[attr-defined]


def test_a_field_that_the_version_lacks() -> None:
    """Dropped when ignorable or at its default, otherwise refused, as Kafka does."""
    assert decode(FetchRequest, encode(FetchRequest(session_id=9), 6), 6).session_id == 0
    told = MetadataResponse(
        throttle_time_ms=9,
        brokers=[MetadataResponseBroker(node_id=1, rack="r")],
        cluster_id="c",
        controller_id=1,
        topics=[
            MetadataResponseTopic(
                name="t",
                topic_id=bytes(range(16)),
                is_internal=True,
                partitions=[MetadataResponsePartition(leader_epoch=4, offline_replicas=[2])],
            )
        ],
        error_code=3,
    )
    first = decode(MetadataResponse, encode(told, 0), 0)
    assert (first.controller_id, first.cluster_id, first.topics[0].name) == (-1, None, "t")
    with pytest.raises(ValueError, match="cannot carry replica_state"):
        encode(FetchRequest(replica_state=ReplicaState(replica_id=1)), 12)
    with pytest.raises(ValueError, match="cannot carry group_instance_id"):
        encode(JoinGroupRequest(group_instance_id="i"), 4)


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("boolean", False),
        *((kind, 0) for kind in ("int8", "int16", "uint16", "int32", "int64")),
        ("float64", 0.0),
        ("uuid", NULL_UUID),
        ("string", ""),
        ("binary", b""),
        ("record_bytes", None),
    ],
)
def test_what_a_description_does_not_say_of_a_field(kind: str, default: object) -> None:
    """Kafka's defaults: zero or empty, not nullable, no tag, an error where a version lacks it."""
    field = getattr(fields, kind)("0+")
    assert field.default == default and type(field.default) is type(default)
    assert (field.nullable, field.tag, field.ignorable) == (None, None, False)


def test_records_are_views_of_the_frame() -> None:
    """Nothing is copied when records are read, from bytes or from a view."""
    request = ProduceRequest(
        topic_data=[
            TopicProduceData(name="t", partition_data=[PartitionProduceData(records=b"records")])
        ]
    )
    frame = encode(request, 9)
    for buffer in (frame, memoryview(frame)):
        records = decode(ProduceRequest, buffer, 9).topic_data[0].partition_data[0].records
        assert isinstance(records, memoryview)
        assert records.obj is frame
        assert records.tobytes() == b"records"


class Slice:
    """Stands for a piece of a file: it has a length and nothing else."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length


@pytest.mark.parametrize("version", [4, 11, 12, 16])
def test_records_are_written_from_parts_nobody_looks_into(version: int) -> None:
    """Opaque objects stay whole in the list of parts, alone or several to a field; the length
    around them is right.
    """
    one, two, three = Slice(1000), Slice(20), Slice(3)

    def response(first: object, second: object, third: object) -> FetchResponse:
        partitions = [
            PartitionData(records=first),
            PartitionData(records=second),
            PartitionData(records=third),
            PartitionData(),
        ]
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])

    parts = encode_parts(response(one, [two, b"xyz", three], memoryview(b"view")), version)
    assert [part for part in parts if isinstance(part, Slice)] == [one, two, three]
    filled = b"".join(bytes(len(part)) if isinstance(part, Slice) else part for part in parts)
    assert filled == encode(response(bytes(1000), bytes(20) + b"xyz" + bytes(3), b"view"), version)
    assert sum(map(len, parts)) == len(filled)


def test_null_structs() -> None:
    """An ordinary struct's null is -1, a tagged one's 0, as Kafka 4.3.1 writes them."""
    assert encode(DescribeTopicPartitionsResponse(), 0)[-2:] == b"\xff\0"
    plain = "010101010101ffffffff01"
    assert encode(ConsumerGroupMemberMetadataValue(), 0).hex() == plain + "00"
    assert (
        encode(ConsumerGroupMemberMetadataValue(classic_member_metadata=None), 0).hex()
        == plain + "01000100"
    )
    set_value = ConsumerGroupMemberMetadataValue(
        classic_member_metadata=ClassicMemberMetadata(session_timeout_ms=5)
    )
    assert encode(set_value, 0).hex() == plain + "01000701000000050100"


def test_lengths_on_both_sides_of_a_varint_byte() -> None:
    """126, 127 and 128 are where one byte becomes two; 16 and 17 numbers where arrays are packed
    another way.
    """
    for size in (0, 1, 15, 16, 17, 18, 125, 126, 127, 128, 129, 16382, 16383, 16384):
        record = PartitionChangeRecord(isr=list(range(size)))
        assert decode(PartitionChangeRecord, encode(record, 0), 0) == record
        request = MetadataRequest(topics=[])
        request.topics = None
        assert decode(MetadataRequest, encode(request, 9), 9) == request
        join = JoinGroupRequest(group_id="g" * size)
        assert decode(JoinGroupRequest, encode(join, 6), 6) == join


class Tree(Request, api_key=0, versions="0-1", flexible="1+"):
    first: int = int32("0+")
    names: list[str] = array(string, "0+")


def test_smallest_size() -> None:
    assert (smallest_size(Tree, 0), smallest_size(Tree, 1)) == (8, 6)


def test_neighbours_of_fixed_width_are_one_unpack() -> None:
    """What the speed rests on: the fixed fields of a partition, and the byte of its tagged
    fields, are read and written at once.
    """
    text = source_text(FetchRequest, 12)
    assert 'Struct(">iiqiqiB").unpack_from' in text
    assert 'Struct(">iiqiqix").pack' in text


def test_source_text_is_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """mypy --strict finds nothing to say about generated readers and writers, so that they can
    be compiled.
    """
    chosen: list[tuple[type[Message], int]] = [
        (FetchRequest, 18),
        (FetchResponse, 16),
        (ProduceRequest, 9),
        (ConsumerGroupMemberMetadataValue, 0),
        (DescribeTopicPartitionsResponse, 0),
        (DescribeConfigsResponse, 4),
        (PartitionChangeRecord, 2),
    ]
    for cls, version in chosen:
        reader, writer = source_text(cls, version).split("\n\n\nfrom ")
        (tmp_path / f"read_{cls.__name__}.py").write_text(reader)
        (tmp_path / f"write_{cls.__name__}.py").write_text("from " + writer)
    monkeypatch.setenv("MYPYPATH", str(Path(twisted_broker.__file__).parents[1]))
    options = ["--strict", "--follow-imports", "silent", "--cache-dir", str(tmp_path / "cache")]
    report, errors, status = mypy.run([*options, str(tmp_path)])
    assert status == 0, report + errors
    # The check has teeth: types of the descriptions are known to it.
    wrong = tmp_path / "write_ProduceRequest.py"
    wrong.write_text(wrong.read_text().replace(".encode()", " + 1"))
    assert "Unsupported operand types" in mypy.run([*options, str(wrong)])[0]


def test_importing_descriptions_compiles_nothing() -> None:
    """A family is light: no generator, no other family, no `struct` code made for it."""
    program = (
        "import sys, twisted_broker.wire.messages.fetch; print(*sorted(name for name in "
        "sys.modules if name.startswith('twisted_broker.wire')))"
    )
    names = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "twisted_broker.wire.messages.fetch" in names
    # Compiled messages need no description.
    assert set(names) <= {
        "twisted_broker.wire",
        "twisted_broker.wire.errors",
        "twisted_broker.wire.fields",
        "twisted_broker.wire.messages",
        "twisted_broker.wire.messages.fetch",
        "twisted_broker.wire.native",
        "twisted_broker.wire.primitives",
        "twisted_broker.wire.schema",
        "twisted_broker.wire.structs",
    }


def test_numbers_out_of_range_are_not_written() -> None:
    """A value that its type cannot hold is a bug of ours and loud."""
    with pytest.raises(struct.error):
        encode(ListOffsetsRequest(replica_id=2**31), 1)


@pytest.mark.parametrize(("topics", "partitions"), [(1, 9000), (9000, 1), (30, 300), (3, 3000)])
def test_a_message_is_emptied_in_steps(topics: int, partitions: int) -> None:
    """Whatever its shape, each step frees a few thousand elements at most."""
    message = MetadataResponse(
        brokers=[MetadataResponseBroker()],
        topics=[
            MetadataResponseTopic(
                partitions=[MetadataResponsePartition() for _ in range(partitions)]
            )
            for _ in range(topics)
        ],
    )
    kept = message.topics[:]

    def left() -> int:
        there = kept if partitions > FEW_ELEMENTS else message.topics
        return sum(len(topic.partitions) for topic in there)

    before, steps = left(), 0
    for _ in emptied_in_steps(message):
        assert before - left() <= 2 * FEW_ELEMENTS
        before = left()
        steps += 1
    assert message.topics == [] == message.brokers
    # Small ones go with their topic, whoever else holds that.
    assert partitions <= FEW_ELEMENTS or not any(topic.partitions for topic in kept)
    assert 9000 // FEW_ELEMENTS <= steps <= 12


def test_what_is_not_an_array_of_structs_stays() -> None:
    message = MetadataResponsePartition(isr_nodes=[1, 2])
    assert list(emptied_in_steps(message)) == []
    assert message.isr_nodes == [1, 2]
    request = MetadataRequest(topics=None)
    assert list(emptied_in_steps(request)) == []
