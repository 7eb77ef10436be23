"""Leaders and coordinators that are moved, members that are removed: as Kafka's tools do it.

Owns `AdminCalls`. Each public method is one call of the socket; it returns when every broker that
runs knows what it did.

Source: `kafka-reassign-partitions`, `kafka-leader-election`, KIP-345. Not here: records and groups
(`cluster_calls.py`).
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from twisted.internet.defer import ensureDeferred

from twisted_broker.coordinator.group_records import partition_for
from twisted_broker.testing.cluster_calls import CallFailed, ClusterCalls
from twisted_broker.wire.errors import ErrorCode, error_of
from twisted_broker.wire.messages import groups, reassignment

_OFFSETS, _TRANSACTIONS = "__consumer_offsets", "__transaction_state"


class AdminCalls:
    """Of a cluster that runs. Methods raise CallFailed, and TimeoutError after `within` seconds."""

    def __init__(self, calls: ClusterCalls) -> None:
        self._calls = calls

    async def move_leader(
        self, topic: str, partition: int, to: int | None = None, within: float = 30.0
    ) -> None:
        """`to`: one of its replicas, None: another one that is in sync."""
        known = self._calls.registration(topic, partition)
        others = [each for each in known.isr if each != known.leader]
        if to is None and not others:
            raise CallFailed(f"no other replica of {topic}-{partition} is in sync")
        goal = others[0] if to is None else to
        if goal not in known.replicas:
            raise CallFailed(
                f"broker {goal} has no replica of {topic}-{partition}: "
                f"{', '.join(map(str, known.replicas))} have one"
            )
        order = [goal, *(each for each in known.replicas if each != goal)]
        part = reassignment.ReassignablePartition(partition_index=partition, replicas=order)
        moved = reassignment.ReassignableTopic(name=topic, partitions=[part])
        request = reassignment.AlterPartitionReassignmentsRequest(topics=[moved])
        answer = await self._calls.ask_any(request, 0)
        code = answer.error_code or answer.responses[0].partitions[0].error_code
        if code:
            raise CallFailed(f"the leader of {topic}-{partition} is not moved: {_text(code)}")
        await self._calls.until_registered(
            topic, partition, lambda each: each.replicas[0] == goal, within
        )
        name = reassignment.TopicPartitions(topic=topic, partitions=[partition])
        elect = reassignment.ElectLeadersRequest(election_type=0, topic_partitions=[name])
        answer = await self._calls.ask_any(elect, 2)
        for each in answer.replica_election_results:
            code = each.partition_result[0].error_code
            if code not in (0, ErrorCode.ELECTION_NOT_NEEDED):
                raise CallFailed(f"broker {goal} cannot lead {topic}-{partition}: {_text(code)}")
        await self._calls.until_registered(
            topic, partition, lambda each: each.leader == goal, within
        )
        await self._calls.leader(topic, partition, within)

    async def move_coordinator(
        self,
        group: str | None = None,
        transactional_id: str | None = None,
        to: int | None = None,
        within: float = 30.0,
    ) -> None:
        """Of a group, or of a transactional id."""
        if (group is None) == (transactional_id is None):
            raise CallFailed("a coordinator is of a group, or of a transactional id")
        topic = _OFFSETS if group is not None else _TRANSACTIONS
        # Who asks makes the topic, where nobody has.
        if group is not None:
            await self._calls.group(group, within)
        else:
            await self._calls.transaction_state(transactional_id or "", within)
        count = self._calls.partitions_of(topic)
        # Java's hash of the name, in both cases.
        name = group if group is not None else transactional_id or ""
        await self.move_leader(topic, partition_for(name, count), to, within)

    async def remove_member(self, group: str, member: str, within: float = 30.0) -> None:
        """By its member id or its client id: as if its session had ended."""
        found = await self._calls.group(group, within)
        ids = [each["id"] for each in found["members"] if member in (each["id"], each["client_id"])]
        if not ids:
            known = ", ".join(each["client_id"] for each in found["members"]) or "none"
            raise CallFailed(f"group {group} has no member {member}: its clients are {known}")
        identities = [groups.MemberIdentity(member_id=each) for each in ids]
        request = groups.LeaveGroupRequest(group_id=group, members=identities)
        await self._calls.ask_coordinator(group, request, 4, within)

    async def elect_uncleanly(self, topic: str, partition: int, within: float = 30.0) -> None:
        """A replica that lives leads, in sync or not: what only others had is lost."""
        self._calls.registration(topic, partition)
        name = reassignment.TopicPartitions(topic=topic, partitions=[partition])
        elect = reassignment.ElectLeadersRequest(election_type=1, topic_partitions=[name])
        answer = await self._calls.ask_any(elect, 2)
        for each in answer.replica_election_results:
            code = each.partition_result[0].error_code
            if code == ErrorCode.ELECTION_NOT_NEEDED:
                raise CallFailed(f"{topic}-{partition} has a leader")
            if code:
                raise CallFailed(f"nobody can lead {topic}-{partition}: {_text(code)}")
        await self._calls.until_registered(topic, partition, lambda each: each.leader >= 0, within)
        await self._calls.leader(topic, partition, within)

    async def rebalance(self, group: str, within: float = 30.0) -> None:
        """As if a member joined, and left at once. Its members join anew when they hear of it."""
        found = await self._calls.group(group, within)
        if not found["members"]:
            raise CallFailed(f"group {group} has no members")
        topics = sorted({topic for each in found["members"] for topic, _ in each["assigned"]})
        request = groups.DescribeGroupsRequest(groups=[group])
        described = (
            await self._calls.ask_coordinator(group, request, 5, within, _no_error)
        ).groups[0]
        if described.members:
            await self._join_and_leave(group, described, within)
            return
        member = groups.ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=str(uuid4()),
            member_epoch=0,
            rebalance_timeout_ms=30_000,
            subscribed_topic_names=topics,
            topic_partitions=[],
        )
        await self._calls.ask_coordinator(group, member, 0, within)
        member.member_epoch = -1
        await self._calls.ask_coordinator(group, member, 0, within)

    async def _join_and_leave(self, group: str, described: Any, within: float) -> None:
        """In a classic group: a join waits until all have joined, so it has a connection of its
        own, and its member leaves over another one.
        """
        protocol = groups.JoinGroupRequestProtocol(
            name=described.protocol_data, metadata=described.members[0].member_metadata
        )
        join = groups.JoinGroupRequest(
            group_id=group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=30_000,
            member_id="",
            protocol_type=described.protocol_type,
            protocols=[protocol],
        )
        answer = await self._calls.ask_coordinator(group, join, 5, within, _no_error)
        join.member_id = answer.member_id
        another = self._calls.another()
        joining = ensureDeferred(another.ask_coordinator(group, join, 5, within, _no_error))
        joining.addErrback(lambda _: None)  # its connection is closed below

        while (await self._calls.group(group, within))["state"] == "Stable":
            await self._calls.pause()
        leaver = groups.MemberIdentity(member_id=join.member_id)
        leave = groups.LeaveGroupRequest(group_id=group, members=[leaver])
        await self._calls.ask_coordinator(group, leave, 4, within)
        another.close()


def _no_error(answer: Any) -> int:
    return 0


def _text(code: int) -> str:
    return error_of(code).name
