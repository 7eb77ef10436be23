"""Known mistakes of a member of a ZooKeeper cluster, planted one at a time in this process only.

`python -m tests.simulation.zookeeper_mutations [NAME ..]` looks for the first seed that catches
each.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from twisted.logger import globalLogBeginner

from tests.simulation.mutations import Planting
from twisted_broker.net.listeners import OpenListeners
from twisted_broker.replication.partition.isr_state import IsrAnswer
from twisted_broker.simulation.__main__ import Verdict, run_seed
from twisted_broker.simulation.zookeeper.options import zookeeper_options_of
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.zookeeper import cluster_state
from twisted_broker.zookeeper.cluster_state import ClusterState
from twisted_broker.zookeeper.isr_state_writes import IsrStateWrites
from twisted_broker.zookeeper.membership import Membership
from twisted_broker.zookeeper.znodes import state_json, state_path

SEEDS = 100


def isr_written_unconditionally(plant: Planting) -> None:
    """A leader writes its ISR whatever the controller decided meanwhile."""

    async def write_once(self: IsrStateWrites, proposal: Any, state: Any) -> IsrAnswer:
        path = state_path(proposal.topic_partition)
        version = await self._zookeeper.set(path, state_json(state), -1)
        return IsrAnswer(
            ErrorCode.NONE, self._node_id, proposal.leader_epoch, frozenset(state.isr), 0, version
        )

    plant(IsrStateWrites, "_write_once", write_once)


def controller_epoch_not_checked(plant: Planting) -> None:
    """Who was controller commands on."""
    real = ClusterState.refusal

    def refusal(self: ClusterState, request: Any) -> ErrorCode:
        found = real(self, request)
        return ErrorCode.NONE if found is ErrorCode.STALE_CONTROLLER_EPOCH else found

    plant(ClusterState, "refusal", refusal)


def older_role_obeyed(plant: Planting) -> None:
    """A LeaderAndIsr whose leader epoch is not above the one here is obeyed."""
    real = ClusterState._role_error

    def role_error(self: ClusterState, *arguments: Any) -> ErrorCode:
        found = real(self, *arguments)
        return ErrorCode.NONE if found is ErrorCode.STALE_CONTROLLER_EPOCH else found

    plant(ClusterState, "_role_error", role_error)


def expired_session_not_noticed(plant: Planting) -> None:
    """A broker whose session expired does not register again."""

    async def register_again(self: Membership) -> None:
        pass

    plant(Membership, "_register_again", register_again)


def delete_sentinel_ignored(plant: Planting) -> None:
    """The epoch -2 of a topic that is being deleted is compared like any other."""

    def stop_error(state: Any, partition: Any) -> ErrorCode:
        if partition is not None and state.leader_epoch < partition.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.NONE

    plant(cluster_state, "_stop_error", stop_error)


def accepted_before_it_is_registered(plant: Planting) -> None:
    """A controller commands a process in the name of the one before."""
    real = OpenListeners.open

    def open_and_accept(
        self: OpenListeners,
        endpoint: Any,
        factory: Any,
        advertised: Any,
        is_controller: bool,
        start_accepting: bool,
        protocol: Any,
    ) -> Any:
        return real(self, endpoint, factory, advertised, is_controller, True, protocol)

    plant(OpenListeners, "open", open_and_accept)


MUTATIONS: dict[str, Callable[[Planting], None]] = {
    each.__name__: each
    for each in (
        isr_written_unconditionally,
        controller_epoch_not_checked,
        older_role_obeyed,
        expired_session_not_noticed,
        delete_sentinel_ignored,
        accepted_before_it_is_registered,
    )
}


@contextmanager
def switched_on(name: str) -> Iterator[None]:
    """The mistake is in the production code within, and must have run."""
    with ExitStack() as stack:
        planting = Planting(stack)
        MUTATIONS[name](planting)
        yield
        planting.check_ran()


def search(name: str, seeds: int = SEEDS, first: int = 0) -> tuple[int, Verdict] | None:
    """The first seed that catches a mutation, and what it says."""
    with switched_on(name):
        for seed in range(first, first + seeds):
            verdict = run_seed(seed, options=zookeeper_options_of(seed))
            if verdict.violation is not None:
                return seed, verdict
    return None


def main(names: list[str]) -> None:
    globalLogBeginner.beginLoggingTo([], redirectStandardIO=False, discardBuffer=True)
    for name in names or MUTATIONS:
        found = search(name)
        caught = "not caught" if found is None else f"seed {found[0]}: {found[1].violation}"
        print(f"{name}: {caught}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
