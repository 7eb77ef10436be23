"""`make traces`: what many short seeds do, a digest for each, so that two builds of the same source
can be compared by their output.

A seed is cut to a few seconds of faults and the repair behind them. Not here: that the source alone
decides a trace (`test_same_trace.py`).
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from hashlib import sha256

from twisted.logger import globalLogBeginner

from twisted_broker.log import log
from twisted_broker.simulation.__main__ import run_seed
from twisted_broker.simulation.options import options_of
from twisted_broker.simulation.process_pool import run_all

_LIMIT_SECONDS = 300.0


def digest(seed: int, seconds: int) -> str:
    verdict = run_seed(seed, trace=True, options=replace(options_of(seed), seconds=seconds))
    lines = verdict.run.cluster.trace.lines
    return f"{sha256(chr(10).join(lines).encode()).hexdigest()[:16]} {len(lines)} calls"


def main() -> None:
    parser = argparse.ArgumentParser(prog="traces", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--seconds", type=int, default=5, help="of faults, in each")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    chosen = parser.parse_args()
    globalLogBeginner.beginLoggingTo([], redirectStandardIO=False, discardBuffer=True)
    kind = "plain" if str(log.__file__).endswith(".py") else "compiled"
    sys.stderr.write(f"{chosen.seeds} seeds, {kind}\n")
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    results = run_all(seeds, lambda seed: digest(seed, chosen.seconds), chosen.jobs, _LIMIT_SECONDS)
    found = dict(result for result in results if result is not None)
    sys.stdout.writelines(f"{seed} {found[seed]}\n" for seed in seeds)


if __name__ == "__main__":
    main()
