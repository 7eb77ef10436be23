"""Faults that lie in wait: they begin a situation, look at it again and again, and strike at the
moment in which a mistake would show.

Owns `handover`, `relapse` and `starve` (`fault_base` says what a fault is). All leave n1, the
controller, alone.

Source: KIP-966 (who may lead after a handover), KIP-497 and KAFKA-7128 (what may be exposed while
an expansion is pending). Leaves out: judging.
"""

from __future__ import annotations

from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.partition.isr import PendingExpand
from twisted_broker.testing.faults.base import Trouble, partitions
from twisted_broker.testing.sim.node import CONTROLLER_PORT, SimNode

_HANDOVER_LOOK_SECONDS, _HANDOVER_LOOKS = 0.001, 3000
_RELAPSE_LOOK_SECONDS, _RELAPSE_LOOKS = 0.0005, 6000
_STARVE_LOOK_SECONDS, _STARVE_LOOKS = 0.01, 500
_CONTROLLER, _CONTROLLER_ID = "n1", 1


def handover(trouble: Trouble, node: SimNode) -> None:
    """A machine leaves in order; as soon as something is committed without it that its other
    follower has not heard of, a leader dies.
    """
    if node.name == _CONTROLLER or not all(
        other.healthy for other in trouble.cluster.nodes.values()
    ):
        return
    node.stop()
    trouble.clock.callLater(
        _HANDOVER_LOOK_SECONDS, _strike_when_unheard, trouble, node, {}, _HANDOVER_LOOKS
    )
    trouble.clock.callLater(4 + trouble.random.random() * 3, trouble.again, node)
    trouble.clock.callLater(11 + trouble.random.random() * 3, trouble.again, node)


def _strike_when_unheard(
    trouble: Trouble, node: SimNode, ends: dict[TopicPartition, int], looks: int
) -> None:
    """`ends`: where the logs of the machine that left ended."""
    if node.is_up:
        ends |= {
            name: partition.log.log_end_offset
            for name, partition in partitions(node).items()
            if partition.log is not None
        }
    nodes = trouble.cluster.nodes.values()
    leader = next(
        (other for other in nodes if other is not node and _is_unheard(trouble, other, node, ends)),
        None,
    )
    if leader is not None and leader.name in trouble.victims:
        leader.kill()
        trouble.clock.callLater(9 + trouble.random.random() * 6, trouble.again, leader)
    elif looks:
        trouble.clock.callLater(
            _HANDOVER_LOOK_SECONDS, _strike_when_unheard, trouble, node, ends, looks - 1
        )


def _is_unheard(
    trouble: Trouble, leader: SimNode, gone: SimNode, ends: dict[TopicPartition, int]
) -> bool:
    """Whether it committed more than the one that left holds, while nobody else knows of more
    than that.
    """
    others = [
        partitions(other) for other in trouble.cluster.nodes.values() if other not in (leader, gone)
    ]
    for name, partition in partitions(leader).items():
        log, end = partition.leader_log, ends.get(name)
        if (
            log is None
            or end is None
            or gone.node_id in partition.isr_state.isr
            or log.high_watermark <= end
        ):
            continue
        marks = [
            held[name].log.high_watermark
            for held in others
            if name in held and held[name].log is not None
        ]
        if marks and max(marks) <= end:
            return True
    return False


def relapse(trouble: Trouble, node: SimNode) -> None:
    """A machine falls out of its ISRs and comes back; when its leaders tell the controller so,
    their connections die, and it stops again.
    """
    if node.name == _CONTROLLER or any(
        other.clock.paused for other in trouble.cluster.nodes.values()
    ):
        return  # with two of three away nothing is committed that the one could lack
    back = 3.5 + trouble.random.random()
    trouble.pause_for(node, back)
    trouble.clock.callLater(back, _strike_when_joining, trouble, node, _RELAPSE_LOOKS)


def _strike_when_joining(trouble: Trouble, node: SimNode, looks: int) -> None:
    if _is_joining(trouble, node):
        _give_up_on_the_controller(trouble)
        trouble.clock.callLater(
            0.1 + trouble.random.random() * 0.5,
            trouble.pause_for,
            node,
            5.0 + trouble.random.random() * 2,
        )
    elif looks:
        trouble.clock.callLater(
            _RELAPSE_LOOK_SECONDS, _strike_when_joining, trouble, node, looks - 1
        )


def _is_joining(trouble: Trouble, node: SimNode) -> bool:
    """Whether a leader proposes it to the controller."""
    states = [
        partition.isr_state
        for other in trouble.cluster.nodes.values()
        for partition in partitions(other).values()
    ]
    return any(
        isinstance(state, PendingExpand) and state.joining == node.node_id for state in states
    )


def _give_up_on_the_controller(trouble: Trouble) -> None:
    trouble.note("brokers find their connections to the controller dead")
    for near in list(trouble.cluster.network.connections):
        if near.peer.getHost().port == CONTROLLER_PORT and near.connected and not near.clock.dead:
            trouble.cluster.network.give_up(near, 3.0 + trouble.random.random() * 3)


def starve(trouble: Trouble, node: SimNode) -> None:
    """Who follows a leader stands still, until it is alone in an ISR that is too small; then it
    dies, and they go on without what it had.
    """
    nodes = trouble.cluster.nodes.values()
    leader = next((each for each in (node, *nodes) if _leads_far_from_the_controller(each)), None)
    if leader is None or not all(other.healthy for other in nodes):
        return
    for other in nodes:
        if other is not leader and other.name != _CONTROLLER:
            trouble.pause_for(other, 5.0 + trouble.random.random() * 2)
    trouble.clock.callLater(
        _STARVE_LOOK_SECONDS, _strike_when_alone, trouble, leader, _STARVE_LOOKS
    )


def _leads_far_from_the_controller(node: SimNode) -> bool:
    """Whether it leads a partition that only machines other than the controller's hold, so that
    all its followers may stand still.
    """
    remote = [
        partition.remote_replicas
        for partition in partitions(node).values()
        if partition.is_leader and partition.min_isr > 1
    ]
    return node.name != _CONTROLLER and any(
        followers and _CONTROLLER_ID not in followers for followers in remote
    )


def _strike_when_alone(trouble: Trouble, node: SimNode, looks: int) -> None:
    if any(
        partition.is_leader and len(partition.isr_state.isr) == 1 < partition.min_isr
        for partition in partitions(node).values()
    ):
        node.kill()
        trouble.clock.callLater(11 + trouble.random.random() * 4, trouble.again, node)
    elif looks:
        trouble.clock.callLater(_STARVE_LOOK_SECONDS, _strike_when_alone, trouble, node, looks - 1)
