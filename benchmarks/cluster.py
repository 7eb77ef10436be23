"""`python -m benchmarks.cluster [CLUSTER ...]`: clusters of three brokers side by side, in turn, in
one run; medians and ranges as a Markdown table.

1. Starts and stops first, each on empty directories, the clusters taking turns.
2. Then each cluster once, all of them up, warmed; every measure of a round is taken on one after
   the other before the next measure.

Ends with status 1 when a reactor of ours was busy for more than 200 ms; which turns count:
`tests/faults/slow_turns.py`.

Without arguments: `apart`, `together`, and `kafka` where KAFKA_HOME or KAFKA_JARS is set. See
`clusters` for what they are.
"""

from __future__ import annotations

import argparse
import os
import sys

from benchmarks.cluster_load import MEASURES, ClusterTarget, processes, warm_up
from benchmarks.clusters import CLUSTERS, Cluster
from benchmarks.compare import Samples, add, disturbance, note, table
from tests.faults.slow_turns import is_machine_idle, too_slow


def cold_starts(clusters: list[Cluster], rounds: int, samples: Samples) -> None:
    for round_number in range(rounds):
        for one in clusters:
            add(samples, one.name, {"start to a topic on three brokers: s": one.start()})
            add(samples, one.name, {"stop of all: s": one.stop()})
        note(f"cold start {round_number + 1} of {rounds}")


def loads(clusters: list[Cluster], options: argparse.Namespace, samples: Samples) -> list[float]:
    """All measures, in turn; what other programs used meanwhile."""
    targets: list[ClusterTarget] = []
    for one in clusters:
        one.start()
        note(f"{one.name}: {processes(one)}")
        targets.append(ClusterTarget(one, options.scale))
        warm_up(targets[-1])
        note(f"{one.name} is warm")
    for round_number in range(options.rounds):
        for measure, work in MEASURES.items():
            if options.only and measure not in options.only:
                continue
            for target in targets:
                add(samples, target.cluster.name, work(target))
                note(
                    f"round {round_number + 1} of {options.rounds}: {measure}, "
                    f"{target.cluster.name}"
                )
    return [cores for target in targets for cores in target.other_cores]


def arguments() -> argparse.Namespace:
    default = ["apart", "together"] + (
        ["kafka"] if os.environ.get("KAFKA_HOME") or os.environ.get("KAFKA_JARS") else []
    )
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clusters", nargs="*", default=default, help=" | ".join(CLUSTERS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="shortens (or lengthens) every measure"
    )
    parser.add_argument("--only", nargs="*", choices=list(MEASURES), help="these measures alone")
    parser.add_argument("--no-start", action="store_true", help="without the cold starts")
    options = parser.parse_args()
    for name in options.clusters:
        if name not in CLUSTERS:
            parser.error(f"{name!r} is none of {', '.join(CLUSTERS)}")
    return options


def main() -> None:
    options = arguments()
    clusters = [CLUSTERS[name]() for name in options.clusters]
    samples: Samples = {}
    others: list[float] = []
    try:
        if not options.no_start:
            cold_starts(clusters, options.rounds, samples)
        others = loads(clusters, options, samples)
    finally:
        slow = [
            f"{one.name}: a turn of the reactor of {each}"
            for one in clusters
            for each in too_slow(one.slow_turns(), is_machine_idle())
        ]
        for one in clusters:
            one.remove()
    print(table(samples, [one.name for one in clusters]))
    print(disturbance(others))
    if others:
        print("With more than one cluster that includes the idle ones.")
    if slow:
        sys.exit("\n".join(slow))


if __name__ == "__main__":
    main()
