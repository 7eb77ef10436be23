"""Records of control batches. The key is a 16-bit version 0 and the type (ControlRecordTypeSchema):
ABORT 0, COMMIT 1, LEADER_CHANGE 2, SNAPSHOT_HEADER 3, SNAPSHOT_FOOTER 4, KRAFT_VERSION 5,
KRAFT_VOTERS 6. The value of 0 and 1 is a 16-bit version 0 and an EndTxnMarker; the values of the
others have their version inside.

LeaderChangeMessage: 1 directory ids (KIP-853).
"""

from twisted_broker.wire.schema import (
    Record,
    Struct,
    array,
    int16,
    int32,
    int64,
    string,
    structure,
    uint16,
    uuid,
)


class ControlRecordTypeSchema(Record, versions="0"):
    type: int = int16("0+")


class EndTxnMarker(Record, versions="0"):
    coordinator_epoch: int = int32("0+")


class LeaderChangeMessageVoter(Struct):
    voter_id: int = int32("0+")
    voter_directory_id: bytes = uuid("1+")


class LeaderChangeMessage(Record, versions="0-1", flexible="0+"):
    version: int = int16("0+")
    leader_id: int = int32("0+")
    voters: list[LeaderChangeMessageVoter] = array(LeaderChangeMessageVoter, "0+")
    granting_voters: list[LeaderChangeMessageVoter] = array(LeaderChangeMessageVoter, "0+")


class SnapshotHeaderRecord(Record, versions="0", flexible="0+"):
    version: int = int16("0+")
    last_contained_log_timestamp: int = int64("0+")


class SnapshotFooterRecord(Record, versions="0", flexible="0+"):
    version: int = int16("0+")


class KRaftVersionRecord(Record, versions="0", flexible="0+"):
    version: int = int16("0+")
    k_raft_version: int = int16("0+")


class Endpoint(Struct):
    name: str = string("0+")
    host: str = string("0+")
    port: int = uint16("0+")


class KRaftVersionFeature(Struct):
    min_supported_version: int = int16("0+")
    max_supported_version: int = int16("0+")


class VotersRecordVoter(Struct):
    voter_id: int = int32("0+")
    voter_directory_id: bytes = uuid("0+")
    endpoints: list[Endpoint] = array(Endpoint, "0+")
    k_raft_version_feature: KRaftVersionFeature = structure(KRaftVersionFeature, "0+")


class VotersRecord(Record, versions="0", flexible="0+"):
    version: int = int16("0+")
    voters: list[VotersRecordVoter] = array(VotersRecordVoter, "0+")
