"""The options drawn from a seed for a cluster with three controllers.

Owns `quorum_options_of`.

1. The cluster, its clients and faults are those that the seed has with one controller
   (`simulation/options.py`); what is drawn here is drawn by itself.
2. The first three machines are the controllers: brokers too, or nothing else. In a liveness run two
   of them stay healthy.
3. Damage of a controller's metadata is left out: whose metadata is gone is no voter any more that
   could keep its promises (QU 1.21).

Not here: the faults of controllers (`quorum/faults.py`).
"""

from __future__ import annotations

from random import Random

from twisted_broker.simulation.options import Options, options_of

CONTROLLERS = 3
FAULTS = (
    "active controller dies",
    "active controller is cut off",
    "active controller is slow",
    "active controller stops",
    "two controllers die",
)
AMID = "active controller dies amid a transaction"


def quorum_options_of(seed: int, brokers: int = 3) -> Options:
    """The options of a seed."""
    options = options_of(seed, brokers)
    random = Random(f"controllers {seed} {brokers}")
    options.controllers = CONTROLLERS
    if options.controller_only:
        options.broker_ids = [CONTROLLERS + number for number in range(1, brokers + 1)]
    kinds = [kind for kind in FAULTS if random.random() < 0.5] or [FAULTS[0]]
    # A liveness run has a healthy majority, whatever happens to the third.
    options.controller_faults = [] if options.liveness else kinds
    options.controller_fault_seconds = random.choice((4.0, 8.0, 16.0))
    options.damages = [kind for kind in options.damages if kind != "damage metadata"]
    if random.random() < 0.5:
        options.settings["metadata.log.max.record.bytes.between.snapshots"] = "3000"
    random = Random(f"transactions {seed} {brokers}")
    if options.controller_faults and random.random() < 0.25:
        # A voter gets one batch at a time, and a decision is several.
        options.controller_faults.append(AMID)
        options.settings["controller.quorum.fetch.max.bytes"] = "1"
        options.knobs["RECORDS_PER_BATCH"] = 2
    return options
