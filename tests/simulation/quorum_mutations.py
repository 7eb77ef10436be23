"""Known mistakes of a controller among several, planted one at a time in this process only.

`python -m tests.simulation.quorum_mutations [NAME ..]` looks for the first seed that catches each.
Mistakes of votes and of the log are those of `tests/raft/mutations.py`: what is here shows only
where controllers decide and brokers follow.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from twisted.logger import globalLogBeginner

from tests.simulation.mutations import Planting
from twisted_broker.cluster.controller import Controller
from twisted_broker.cluster.metadata_log import MetadataLog
from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.simulation.__main__ import Verdict, run_seed
from twisted_broker.simulation.quorum.options import quorum_options_of

SEEDS = 40


def standby_applies_all_it_has(plant: Planting) -> None:
    """Not only what is committed."""
    real = MetadataLog.apply_in_steps

    def apply_in_steps(
        self: MetadataLog, image: MetadataImage, upto: int
    ) -> Generator[None, None, MetadataImage]:
        return (yield from real(self, image, self.end_offset))

    plant(MetadataLog, "apply_in_steps", apply_in_steps)


def sessions_outlive_the_lead(plant: Planting) -> None:
    """Who leads again counts the silence of the time in which another one led."""
    real = Controller._renounce

    def renounce(self: Controller) -> None:
        sessions = self.sessions
        real(self)
        self.sessions = sessions

    plant(Controller, "_renounce", renounce)


def decides_on_after_it_renounced(plant: Planting) -> None:
    """What was decided and never committed stays its view of the cluster."""
    real = Controller._renounce

    def renounce(self: Controller) -> None:
        decided = self.decided
        real(self)
        self.committed = self.decided = decided

    plant(Controller, "_renounce", renounce)


MUTATIONS: dict[str, Callable[[Planting], None]] = {
    mutation.__name__: mutation
    for mutation in (
        standby_applies_all_it_has,
        sessions_outlive_the_lead,
        decides_on_after_it_renounced,
    )
}


@contextmanager
def switched_on(name: str) -> Iterator[None]:
    """Within it the mistake is made."""
    with ExitStack() as stack:
        MUTATIONS[name](Planting(stack))
        yield


def search(name: str, seeds: int = SEEDS, first: int = 0) -> tuple[int, Verdict] | None:
    """The first seed that catches a mutation, and what it says."""
    with switched_on(name):
        for seed in range(first, first + seeds):
            verdict = run_seed(seed, options=quorum_options_of(seed))
            if verdict.violation is not None:
                return seed, verdict
    return None


def main(names: list[str]) -> None:
    globalLogBeginner.beginLoggingTo([], redirectStandardIO=False, discardBuffer=True)
    for name in names or MUTATIONS:
        found: Any = search(name)
        caught = "not caught" if found is None else f"seed {found[0]}: {found[1].violation}"
        print(f"{name}: {caught}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
