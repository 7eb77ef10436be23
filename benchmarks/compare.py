"""`python -m benchmarks.compare [PROGRAM ...]`: programs side by side, in turn, in one run; medians
and ranges as a Markdown table.

1. Cold starts first, each on an empty directory, the programs taking turns.
2. Then each program once, all of them up, warmed; every measure of a round is taken on one after
   the other before the next measure.
3. The table says what all other programs of the machine used meanwhile: above half a core, rates
   and p99 mean little.

Without arguments: `ours`, and `kafka` where KAFKA_HOME or KAFKA_JARS is set. See `servers` for the
others.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.load import MEASURES, Figures, Target, warm_up
from benchmarks.meter import resident_mb
from benchmarks.servers import Commit, Program, end_when_slow, program

Samples = dict[str, dict[str, list[float]]]
"""figure -> program -> samples."""


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def add(samples: Samples, name: str, figures: Figures) -> None:
    for figure, value in figures.items():
        samples.setdefault(figure, {}).setdefault(name, []).append(value)


def cold_starts(programs: list[Program], rounds: int, samples: Samples) -> None:
    for round_number in range(rounds):
        for one in programs:
            seconds = one.start()
            if not math.isnan(seconds):
                time.sleep(2)  # idle is what is measured: nothing to wait for
                add(
                    samples,
                    one.name,
                    {
                        "start to first Metadata: s": seconds,
                        "memory idle: MB": resident_mb(one.pids),
                    },
                )
            one.stop()
        note(f"cold start {round_number + 1} of {rounds}")


def loads(
    programs: Sequence[Any],
    options: argparse.Namespace,
    samples: Samples,
    measures: Mapping[str, Callable[[Any], Figures]],
    target_of: Callable[[Any, float], Target],
) -> list[float]:
    """All measures, in turn; what other programs used meanwhile."""
    targets: dict[str, Target] = {}
    for one in programs:
        one.start()
        targets[one.name] = target_of(one, options.scale)
        warm_up(targets[one.name])
        targets[one.name].other_cores.clear()
        note(f"{one.name} is warm")
    for round_number in range(options.rounds):
        for measure, work in measures.items():
            if options.only and measure not in options.only:
                continue
            for name, target in targets.items():
                add(samples, name, work(target))
            note(f"round {round_number + 1} of {options.rounds}: {measure}")
    return [cores for target in targets.values() for cores in target.other_cores]


def target_of(one: Program, scale: float) -> Target:
    return Target(one.address, one.pids, scale)


def number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def cell(values: list[float]) -> str:
    """`median (least to most)`."""
    if not values:
        return "-"
    middle = number(statistics.median(values))
    return (
        middle if len(values) == 1 else f"{middle} ({number(min(values))} to {number(max(values))})"
    )


def table(samples: Samples, names: list[str]) -> str:
    """With two programs a last column: the first as a multiple of the second."""
    ratio = ["ratio"] if len(names) == 2 else []
    lines = [
        "| " + " | ".join(["figure", *names, *ratio]) + " |",
        "|---" + "|--:" * (len(names) + len(ratio)) + "|",
    ]
    for figure, of_program in samples.items():
        cells = [cell(of_program.get(name, [])) for name in names]
        if ratio:
            first, second = (of_program.get(name) for name in names)
            known = first and second and statistics.median(second)
            cells.append(
                f"{statistics.median(first) / statistics.median(second):.2f}"
                if first and second and known
                else "-"
            )
        lines.append("| " + " | ".join([figure, *cells]) + " |")
    return "\n".join(lines)


def disturbance(others: list[float]) -> str:
    """What other programs did meanwhile (cores they used, once a measure); empty when nothing
    was measured.
    """
    if not others:
        return ""
    return (
        f"\nOther programs used {statistics.median(others):.2f} cores meanwhile (at most "
        f"{max(others):.2f}) of {os.cpu_count()}."
    )


def arguments() -> argparse.Namespace:
    default = (
        ["ours", "kafka"]
        if os.environ.get("KAFKA_HOME") or os.environ.get("KAFKA_JARS")
        else ["ours"]
    )
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "programs",
        nargs="*",
        default=default,
        help="ours | kafka | commit:REV | HOST:PORT:PID[,PID]",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="shortens (or lengthens) every measure"
    )
    parser.add_argument("--only", nargs="*", choices=list(MEASURES), help="these measures alone")
    parser.add_argument("--no-start", action="store_true", help="without the cold starts")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    programs = [program(text) for text in options.programs]
    samples: Samples = {}
    others: list[float] = []
    try:
        if not options.no_start:
            cold_starts(programs, options.rounds, samples)
        others = loads(programs, options, samples, MEASURES, target_of)
    finally:
        end(programs)
    report(programs, samples, others)


def end(programs: Sequence[Program]) -> None:
    for one in programs:
        with contextlib.suppress(OSError):
            one.stop()
        if isinstance(one, Commit):
            one.remove()


def report(programs: Sequence[Program], samples: Samples, others: list[float]) -> None:
    """Prints the table. SystemExit when a turn of a reactor was too long."""
    print(table(samples, [one.name for one in programs]))
    print(disturbance(others))
    end_when_slow(programs)


if __name__ == "__main__":
    main()
