"""A leader's ISR changes on their way to the controller.

Owns `AlterPartitionManager`, which gathers proposals into AlterPartition requests.

1. One request is in flight, of at most `MOST_PARTITIONS`; what is proposed meanwhile goes with the
   next one, at once after a good answer.
2. An answer is per partition. After an error of the whole request, or without an answer, what is
   still wanted is sent again after 50 ms; while the broker is denied it, less and less often
   (`denials.py`).
3. One proposal of a partition at a time; another one is answered OPERATION_NOT_ATTEMPTED.

Source: Kafka's `AlterPartitionManager`; `RL 1.2`, `RL 2.5`. Not here: what an answer does to a
partition (`replication/partition/partition.py`).
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred, succeed
from twisted.logger import Logger

from twisted_broker.cluster.controller_channel import (
    ControllerChannel,
    RegisteredBroker,
    check_answer,
)
from twisted_broker.cluster.denials import Denials
from twisted_broker.cluster.unexpected_errors import UnexpectedErrors
from twisted_broker.interfaces import Runtime
from twisted_broker.replication.partition.isr_state import IsrAnswer, IsrProposal
from twisted_broker.wire.errors import ErrorCode, error_of
from twisted_broker.wire.messages import broker_lifecycle as broker_lifecycle_messages

_logger = Logger()
# Kafka's pause: a leader's acks=all may wait for this change.
RETRY_MS = 50
# To make so large a request, and to process its answer, takes some ten milliseconds each.
MOST_PARTITIONS = 1000
_Key = tuple[bytes, int]


class AlterPartitionManager:
    """Carries one proposal per partition at most; those that come within one turn go together,
    one request at a time.
    """

    def __init__(
        self, runtime: Runtime, node_id: int, channel: ControllerChannel, member: RegisteredBroker
    ) -> None:
        self._runtime, self._node_id, self._channel, self._member = (
            runtime,
            node_id,
            channel,
            member,
        )
        self._wanted: dict[_Key, tuple[IsrProposal, Deferred[IsrAnswer]]] = {}
        self._unexpected_errors = UnexpectedErrors("ISR changes")
        self._denials = Denials("this broker's changes of the ISR")
        self._in_flight = self._stopped = False

    def submit(self, proposal: IsrProposal) -> Deferred[IsrAnswer]:
        """Fires with the controller's answer for this partition; never fails."""
        key = (proposal.topic_id, proposal.topic_partition.partition)
        if key in self._wanted:
            return succeed(IsrAnswer(ErrorCode.OPERATION_NOT_ATTEMPTED))
        answer: Deferred[IsrAnswer] = Deferred()
        self._wanted[key] = (proposal, answer)
        self._send_soon(0)
        return answer

    def withdraw(self, topic_id: bytes, partition: int) -> None:
        """The partition is no longer led here: its proposal need not be tried again."""
        found = self._wanted.pop((topic_id, partition), None)
        if found is not None:
            found[1].callback(IsrAnswer(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def _send_soon(self, delay_ms: int) -> None:
        if self._wanted and not self._in_flight and not self._stopped:
            self._in_flight = True
            # Later, also with 0: all changes of this turn go in one request.
            self._runtime.clock.callLater(delay_ms / 1000, self._send)

    def _send(self) -> None:
        if self._stopped or not self._wanted:
            self._in_flight = False
            return
        sent = dict(islice(self._wanted.items(), MOST_PARTITIONS))
        ensureDeferred(self._exchange(sent)).addErrback(
            lambda failure: _logger.failure("sending AlterPartition failed", failure)
        )

    async def _exchange(self, sent: dict[_Key, tuple[IsrProposal, Deferred[IsrAnswer]]]) -> None:
        try:
            response = await self._channel.send_once(
                self._request([proposal for proposal, _ in sent.values()]), 3
            )
            check_answer(response.error_code)
        except Exception as error:
            _logger.debug("AlterPartition is sent again: {error}", error=error)
            self._unexpected_errors.failed(error)
            self._in_flight = False
            self._send_soon(self._denials.pause_ms(error, RETRY_MS))
            return
        self._unexpected_errors.worked()
        self._denials.succeeded()
        self._in_flight = False
        answered = self._take(response, sent)
        self._send_soon(RETRY_MS if any(key not in answered for key in sent) else 0)

    def _request(
        self, proposals: list[IsrProposal]
    ) -> broker_lifecycle_messages.AlterPartitionRequest:
        topics: dict[bytes, broker_lifecycle_messages.AlterPartitionRequestTopicData] = {}
        for proposal in proposals:
            topic = topics.setdefault(
                proposal.topic_id,
                broker_lifecycle_messages.AlterPartitionRequestTopicData(
                    topic_id=proposal.topic_id
                ),
            )
            topic.partitions.append(
                broker_lifecycle_messages.AlterPartitionRequestPartitionData(
                    partition_index=proposal.topic_partition.partition,
                    leader_epoch=proposal.leader_epoch,
                    new_isr_with_epochs=[
                        broker_lifecycle_messages.BrokerState(broker_id=member, broker_epoch=epoch)
                        for member, epoch in proposal.members
                    ],
                    leader_recovery_state=proposal.leader_recovery_state,
                    partition_epoch=proposal.partition_epoch,
                )
            )
        return broker_lifecycle_messages.AlterPartitionRequest(
            broker_id=self._node_id,
            broker_epoch=self._member.broker_epoch,
            topics=list(topics.values()),
        )

    def _take(
        self, response: broker_lifecycle_messages.AlterPartitionResponse, sent: dict[_Key, Any]
    ) -> set[_Key]:
        """Hands the answers to their proposals; returns the partitions that had one."""
        answered = set()
        for topic in response.topics:
            for partition in topic.partitions:
                key = (bytes(topic.topic_id), partition.partition_index)
                if key in sent and self._wanted.get(key) is sent[key]:
                    answered.add(key)
                    del self._wanted[key]
                    sent[key][1].callback(_answer(partition))
        return answered

    def stop(self) -> None:
        """Nothing is sent any more; what waits stays unanswered."""
        self._stopped = True
        self._channel.close()


def _answer(partition: broker_lifecycle_messages.AlterPartitionResponsePartitionData) -> IsrAnswer:
    if partition.error_code:
        return IsrAnswer(error_of(partition.error_code))
    return IsrAnswer(
        ErrorCode.NONE,
        partition.leader_id,
        partition.leader_epoch,
        frozenset(partition.isr),
        partition.leader_recovery_state,
        partition.partition_epoch,
    )
