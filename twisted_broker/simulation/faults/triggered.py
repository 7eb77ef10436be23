"""Faults triggered by a situation: each brings the situation about, polls until it is there, and
hits at the moment in which a mistake would show.

Owns `handover`, `relapse` and `starve` (`faults/base.py` says what a fault is). None of them hits
n1, the controller.

Source: KIP-966 (who may lead after a handover), KIP-497 and KAFKA-7128 (what may be exposed while
an expansion is pending). Not here: the checks.
"""

from __future__ import annotations

from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.partition.isr_state import PendingExpand
from twisted_broker.simulation.faults.base import FaultInjector, partitions
from twisted_broker.simulation.node import CONTROLLER_PORT, SimNode

# The moment lasts about a round trip: 3 s of looks well below that.
_HANDOVER_LOOK_SECONDS, _HANDOVER_LOOKS = 0.001, 3000
_RELAPSE_LOOK_SECONDS, _RELAPSE_LOOKS = 0.0005, 6000
_STARVE_LOOK_SECONDS, _STARVE_LOOKS = 0.01, 500
_CONTROLLER, _CONTROLLER_ID = "n1", 1


def handover(injector: FaultInjector, node: SimNode) -> None:
    """A machine leaves in order; as soon as something is committed without it that its other
    follower has not heard of, a leader dies.
    """
    if node.name == _CONTROLLER or not all(
        other.healthy for other in injector.cluster.nodes.values()
    ):
        return
    node.stop()
    injector.clock.callLater(
        _HANDOVER_LOOK_SECONDS, _strike_when_unheard, injector, node, {}, _HANDOVER_LOOKS
    )
    injector.clock.callLater(4 + injector.random.random() * 3, injector.restart, node)
    injector.clock.callLater(11 + injector.random.random() * 3, injector.restart, node)


def _strike_when_unheard(
    injector: FaultInjector, node: SimNode, ends: dict[TopicPartition, int], looks: int
) -> None:
    """`ends`: where the logs of the machine that left ended."""
    if node.is_up:
        ends |= {
            name: partition.log.log_end_offset
            for name, partition in partitions(node).items()
            if partition.log is not None
        }
    nodes = injector.cluster.nodes.values()
    leader = next(
        (
            other
            for other in nodes
            if other is not node and _is_unheard(injector, other, node, ends)
        ),
        None,
    )
    if leader is not None and leader.name in injector.victims:
        leader.kill()
        injector.clock.callLater(9 + injector.random.random() * 6, injector.restart, leader)
    elif looks:
        injector.clock.callLater(
            _HANDOVER_LOOK_SECONDS, _strike_when_unheard, injector, node, ends, looks - 1
        )


def _is_unheard(
    injector: FaultInjector, leader: SimNode, gone: SimNode, ends: dict[TopicPartition, int]
) -> bool:
    """Whether it committed more than the one that left holds, while nobody else knows of more
    than that.
    """
    others = [
        partitions(other)
        for other in injector.cluster.nodes.values()
        if other not in (leader, gone)
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


def relapse(injector: FaultInjector, node: SimNode) -> None:
    """A machine falls out of its ISRs and comes back; when its leaders propose it to the
    controller, their connections die, and it stops again.
    """
    if node.name == _CONTROLLER or any(
        other.clock.paused for other in injector.cluster.nodes.values()
    ):
        return  # with two of three away nothing is committed that the one could lack
    back = 3.5 + injector.random.random()
    injector.pause_for(node, back)
    injector.clock.callLater(back, _strike_when_joining, injector, node, _RELAPSE_LOOKS)


def _strike_when_joining(injector: FaultInjector, node: SimNode, looks: int) -> None:
    if _is_joining(injector, node):
        _give_up_on_the_controller(injector)
        injector.clock.callLater(
            0.1 + injector.random.random() * 0.5,
            injector.pause_for,
            node,
            5.0 + injector.random.random() * 2,
        )
    elif looks:
        injector.clock.callLater(
            _RELAPSE_LOOK_SECONDS, _strike_when_joining, injector, node, looks - 1
        )


def _is_joining(injector: FaultInjector, node: SimNode) -> bool:
    """Whether a leader proposes it to the controller."""
    for other in injector.cluster.nodes.values():
        for partition in partitions(other).values():
            state = partition.isr_state
            if isinstance(state, PendingExpand) and state.joining == node.node_id:
                return True
    return False


def _give_up_on_the_controller(injector: FaultInjector) -> None:
    injector.note("brokers find their connections to the controller dead")
    for near in list(injector.cluster.network.connections):
        if near.peer.getHost().port == CONTROLLER_PORT and near.connected and not near.clock.dead:
            injector.cluster.network.give_up(near, 3.0 + injector.random.random() * 3)


def starve(injector: FaultInjector, node: SimNode) -> None:
    """The followers of a leader are paused until it is alone in an ISR below the minimum; then it
    dies, and they resume without the records that only it had.
    """
    nodes = injector.cluster.nodes.values()
    leader = next((each for each in (node, *nodes) if _leads_far_from_the_controller(each)), None)
    if leader is None or not all(other.healthy for other in nodes):
        return
    for other in nodes:
        if other is not leader and other.name != _CONTROLLER:
            injector.pause_for(other, 5.0 + injector.random.random() * 2)
    injector.clock.callLater(
        _STARVE_LOOK_SECONDS, _strike_when_alone, injector, leader, _STARVE_LOOKS
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


def _strike_when_alone(injector: FaultInjector, node: SimNode, looks: int) -> None:
    if any(
        partition.is_leader and len(partition.isr_state.isr) == 1 < partition.min_isr
        for partition in partitions(node).values()
    ):
        node.kill()
        injector.clock.callLater(11 + injector.random.random() * 4, injector.restart, node)
    elif looks:
        injector.clock.callLater(
            _STARVE_LOOK_SECONDS, _strike_when_alone, injector, node, looks - 1
        )
