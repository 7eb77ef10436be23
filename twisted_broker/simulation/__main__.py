"""`make simulate`: runs of a whole cluster under seeds, with faults, until a rule is broken or
everything has healed.

Owns `run_seed`, its `Verdict`, and the command line. A seed is the run, to the byte of its trace;
one that fails prints its options and how to replay it. `--replay` runs a file of recorded actions.

Source: RELIABILITY 4. Not here: what a seed means (`simulation/options.py`), the run
(`simulation/run.py`), the rules (`simulation/checks`), many seeds (`simulation/many_seeds.py`).
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from twisted.logger import globalLogBeginner

from twisted_broker.simulation.checks.committed_state import Violation
from twisted_broker.simulation.fault_schedule import RARE, WANTED
from twisted_broker.simulation.many_seeds import ManySeeds, Outcome
from twisted_broker.simulation.options import Options, options_of
from twisted_broker.simulation.quorum.options import CONTROLLERS, quorum_options_of
from twisted_broker.simulation.quorum.reach import QUORUM_WANTED
from twisted_broker.simulation.quorum.run import QuorumRun
from twisted_broker.simulation.reach import ENOUGH_SEEDS
from twisted_broker.simulation.run import Run
from twisted_broker.simulation.scenario_file import RecordedRun
from twisted_broker.simulation.schedule import Action
from twisted_broker.simulation.zookeeper.options import zookeeper_options_of
from twisted_broker.simulation.zookeeper.reach import ZOOKEEPER_WANTED
from twisted_broker.simulation.zookeeper.run import ZooKeeperRun

_STOPPED = 130


class Verdict:
    """What became of a seed.

    `violation`: None when all was well; `wall_seconds`: how long it took to compute; `reach`: kind
    of what happened -> how often.
    """

    def __init__(
        self, options: Options, run: Run, violation: Violation | None, wall_seconds: float
    ) -> None:
        self.options, self.run, self.violation, self.wall_seconds = (
            options,
            run,
            violation,
            wall_seconds,
        )
        run.reach.count("unclean election", run.checker.truth.unclean_elections)
        self.reach = run.reach.counts

    def __str__(self) -> str:
        sim, notes = self.run.cluster.sim, self.run.notes
        kind = "liveness" if self.options.liveness else "safety"
        if self.options.zookeeper:
            kind = f"ZooKeeper {self.options.zookeeper}"
        elif self.options.controllers > 1:
            kind += f" with {self.options.controllers} controllers"
        return (
            f"seed {self.options.seed} {kind}: {sim.now:.0f} s, {sim.steps} steps, "
            f"{notes.acked_records} acknowledged,"
            f" {notes.consumed_records} read, {self.run.checker.truth.unclean_elections} "
            f"unclean elections, {self.wall_seconds:.1f} s"
        )

    @property
    def recorded(self) -> RecordedRun:
        violation = "" if self.violation is None else str(self.violation)
        return RecordedRun(self.options, self.run.schedule.done, violation)

    def failure(self) -> str:
        """What was found, the options, and how to see it again."""
        options = self.options
        kind = " ZOOKEEPER=1" if options.zookeeper else ""
        kind += f" CONTROLLERS={options.controllers}" if options.controllers > 1 else ""
        replay = f"make simulate SEEDS=1 FROM={options.seed} NODES={options.brokers}{kind} TRACE=1"
        return (
            f"{self}\n  FAILED at {self.run.cluster.sim.now:.3f}: "
            f"{self.violation}\n{options}\n  replay: {replay}"
        )


def run_seed(
    seed: int,
    brokers: int = 3,
    trace: bool = False,
    options: Options | None = None,
    kept: Sequence[Action] | None = None,
) -> Verdict:
    """Runs one seed. `options`: instead of what the seed means; `kept`: see `Run`."""
    options = options if options is not None else options_of(seed, brokers)
    usual = QuorumRun if options.controllers > 1 else Run
    run = (ZooKeeperRun if options.zookeeper else usual)(options, trace, kept)
    began = time.perf_counter()
    violation = None
    gc.disable()  # what a dead process left must not run when the collector happens to come by
    try:
        run.run()
    except Violation as found:
        violation = found
        run.cluster.note("checker", f"VIOLATION: {found}")
    finally:
        gc.enable()
    return Verdict(run.options, run, violation, time.perf_counter() - began)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="simulate",
        description="Runs a cluster in memory under seeds, with faults, checking every step.",
    )
    parser.add_argument("--seeds", type=int, default=20, help="how many seeds")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument(
        "--zookeeper",
        action="store_true",
        help="members of a ZooKeeper cluster, under seeds of their own",
    )
    parser.add_argument(
        "--controllers",
        type=int,
        choices=(1, CONTROLLERS),
        default=1,
        help="three: whoever is active is struck",
    )
    parser.add_argument("--trace", action="store_true", help="print everything that happens")
    parser.add_argument("--timeless", action="store_true", help="leave out how long it took")
    parser.add_argument("--quiet", action="store_true", help="print failures only")
    parser.add_argument(
        "--jobs", type=int, default=len(os.sched_getaffinity(0)), help="how many processes"
    )
    parser.add_argument(
        "--state",
        type=Path,
        help="a directory: what is finished is kept there, so that a run that was stopped goes on, "
        "and failing seeds are made short files there",
    )
    parser.add_argument("--replay", type=Path, help="run the actions of this file instead")
    return parser


def main(arguments: list[str] | None = None, out: TextIO = sys.stdout) -> int:
    """The command. 1 when a seed failed, or many seeds did not reach a kind."""
    chosen = _parser().parse_args(arguments)
    globalLogBeginner.beginLoggingTo([], redirectStandardIO=False, discardBuffer=True)
    if chosen.replay is not None:
        return _replay(chosen.replay, chosen.trace, out)
    if chosen.trace or chosen.timeless:
        return _one_after_another(chosen, out)
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    meaning = _meaning(chosen)

    def made(directory: Path | None) -> ManySeeds:
        return ManySeeds(
            lambda seed: _outcome(run_seed(seed, options=meaning(seed, chosen.brokers))),
            lambda options, kept: run_seed(options.seed, options=options, kept=kept).recorded,
            out,
            directory,
            chosen.jobs,
            _wanted(chosen),
        )

    many = made(chosen.state)
    kind = {"zookeeper": True} if chosen.zookeeper else {}
    if chosen.controllers > 1:
        kind = {"controllers": chosen.controllers}
    if not many.run(seeds, {"brokers": chosen.brokers, **kind}, chosen.quiet):
        return _STOPPED
    enough = chosen.brokers > 2 and many.total.runs >= ENOUGH_SEEDS
    rare = {RARE[lacking] for lacking in many.total.missing() if lacking in RARE}
    if enough and rare:
        out.write(f"runs what reaches rare kinds: {' '.join(map(str, sorted(rare)))}\n")
        others = made(None)
        if not others.run(sorted(rare), {}, chosen.quiet):
            return _STOPPED
        many.include(others)
    if not chosen.quiet:
        out.write(many.total.table())
    missing = many.total.missing() if enough else []
    if missing:
        out.write(f"NOT REACHED by any seed: {', '.join(missing)}\n")
    return _conclusion(many.failed, len(many.outcomes), out) or bool(missing)


def _meaning(chosen: argparse.Namespace) -> Callable[[int, int], Options]:
    if chosen.controllers > 1:
        return quorum_options_of
    return zookeeper_options_of if chosen.zookeeper else options_of


def _wanted(chosen: argparse.Namespace) -> Mapping[str, str]:
    if chosen.controllers > 1:
        return QUORUM_WANTED
    return ZOOKEEPER_WANTED if chosen.zookeeper else WANTED


def _outcome(verdict: Verdict) -> tuple[Outcome, RecordedRun]:
    recorded = verdict.recorded
    text = verdict.failure() if recorded.violation else str(verdict)
    return Outcome(recorded.violation, text, verdict.reach), recorded


def _one_after_another(chosen: argparse.Namespace, out: TextIO) -> int:
    """Each seed with all that happened, in this process."""
    failed = []
    meaning = _meaning(chosen)
    for seed in range(chosen.first, chosen.first + chosen.seeds):
        verdict = run_seed(seed, trace=chosen.trace, options=meaning(seed, chosen.brokers))
        if chosen.timeless:
            verdict.wall_seconds = 0.0
        if verdict.violation is not None:
            failed.append(seed)
        _print_verdict(verdict, out)
    return _conclusion(failed, chosen.seeds, out)


def _conclusion(failed: Sequence[int], seeds: int, out: TextIO) -> int:
    which = f": {' '.join(map(str, failed))}" if failed else ""
    out.write(f"{seeds - len(failed)} passed, {len(failed)} failed{which}\n")
    return 1 if failed else 0


def _replay(path: Path, trace: bool, out: TextIO) -> int:
    try:
        recorded = RecordedRun.load(path)
    except (OSError, ValueError) as error:
        out.write(f"{error}\n")
        return 2
    options = recorded.options
    verdict = run_seed(options.seed, trace=trace, options=options, kept=recorded.actions)
    out.writelines(f"{action}\n" for action in verdict.run.schedule.done)
    _print_verdict(verdict, out)
    return 0 if verdict.violation is None else 1


def _print_verdict(verdict: Verdict, out: TextIO) -> None:
    if verdict.run.cluster.trace.wanted:
        out.write("\n".join(verdict.run.cluster.trace.lines) + "\n")
    out.write(f"{verdict if verdict.violation is None else verdict.failure()}\n")
    out.flush()


if __name__ == "__main__":
    sys.exit(main())
