"""`make simulate`: runs of a whole cluster under seeds, with faults, until a rule is broken or
everything has healed.

Owns `run_seed`, its `Verdict`, and the command line. A seed is the run, to the byte of its trace;
one that fails prints its options and how to replay it.

Source: RELIABILITY 4. Not here: what a seed means (`testing/sim/options.py`), the run
(`testing/sim/run.py`), the rules (`testing/checks`).
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from typing import TextIO

from twisted.logger import globalLogBeginner

from twisted_broker.testing.checks.committed_state import Violation
from twisted_broker.testing.sim.fault_schedule import WANTED
from twisted_broker.testing.sim.options import Options, options_of
from twisted_broker.testing.sim.reach import ENOUGH_SEEDS, Total
from twisted_broker.testing.sim.run import Run


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
        return (
            f"seed {self.options.seed} {kind}: {sim.now:.0f} s, {sim.steps} steps, "
            f"{notes.acked_records} acknowledged,"
            f" {notes.consumed_records} read, {self.run.checker.truth.unclean_elections} "
            f"unclean elections, {self.wall_seconds:.1f} s"
        )

    def failure(self) -> str:
        """What was found, the options, and how to see it again."""
        options = self.options
        replay = f"make simulate SEEDS=1 FROM={options.seed} NODES={options.brokers} TRACE=1"
        return (
            f"{self}\n  FAILED at {self.run.cluster.sim.now:.3f}: "
            f"{self.violation}\n{options}\n  replay: {replay}"
        )


def run_seed(
    seed: int, brokers: int = 3, trace: bool = False, options: Options | None = None
) -> Verdict:
    """Runs one seed. `options`: instead of what the seed means."""
    run = Run(options if options is not None else options_of(seed, brokers), trace)
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
    parser.add_argument("--trace", action="store_true", help="print everything that happens")
    parser.add_argument("--timeless", action="store_true", help="leave out how long it took")
    parser.add_argument("--quiet", action="store_true", help="print failures only")
    return parser


def main(arguments: list[str] | None = None, out: TextIO = sys.stdout) -> int:
    """The command. 1 when a seed failed, or many seeds did not reach a kind."""
    chosen = _parser().parse_args(arguments)
    globalLogBeginner.beginLoggingTo([], redirectStandardIO=False, discardBuffer=True)
    failed, total = [], Total(WANTED)
    for seed in range(chosen.first, chosen.first + chosen.seeds):
        verdict = run_seed(seed, chosen.brokers, chosen.trace)
        if chosen.timeless:
            verdict.wall_seconds = 0.0
        if verdict.violation is not None:
            failed.append(seed)
        total.add(verdict.reach)
        _tell(verdict, chosen.trace, chosen.quiet, out)
    if not chosen.quiet:
        out.write(total.table())
    missing = total.missing() if chosen.brokers > 2 and total.runs >= ENOUGH_SEEDS else []
    if missing:
        out.write(f"NOT REACHED by any seed: {', '.join(missing)}\n")
    out.write(
        f"{chosen.seeds - len(failed)} passed, {len(failed)} "
        f"failed{': ' + ' '.join(map(str, failed)) if failed else ''}\n"
    )
    return 1 if failed or missing else 0


def _tell(verdict: Verdict, trace: bool, quiet: bool, out: TextIO) -> None:
    if trace:
        out.write("\n".join(verdict.run.cluster.trace.lines) + "\n")
    if verdict.violation is not None:
        out.write(f"{verdict.failure()}\n")
    elif not quiet:
        out.write(f"{verdict}\n")
    out.flush()


if __name__ == "__main__":
    sys.exit(main())
