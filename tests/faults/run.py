"""`python -m tests.faults.run`: real brokers and stock clients under faults, one line per round,
and what became of it.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from functools import partial
from pathlib import Path

from tests.faults.kinds import KINDS
from tests.faults.rounds import Run
from tests.faults.security import PLAINTEXT, SASL_SSL


def main(arguments: list[str] | None = None) -> int:
    """0 when the run passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.run", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--quorum",
        action=argparse.BooleanOptionalAction,
        help="all three brokers are controllers, too, and the active one is struck: so it is "
        "without --combined and --security; --no-quorum: one controller that is no broker",
    )
    parser.add_argument(
        "--combined", action="store_true", help="broker 1 alone is the controller, too"
    )
    parser.add_argument(
        "--kind",
        action="append",
        choices=sorted(KINDS),
        help="this kind of fault only; may be given again",
    )
    parser.add_argument(
        "--acks",
        choices=("all", "1"),
        default="all",
        help="1: without idempotence; faults that kill leaders must lose records then",
    )
    parser.add_argument(
        "--security",
        choices=(PLAINTEXT, SASL_SSL),
        default=PLAINTEXT,
        help="SASL_SSL: TLS, and SCRAM-SHA-256, between all nodes and clients",
    )
    parser.add_argument(
        "--transactions",
        action="store_true",
        help="transactional producers and programs that read and write, one of which dies in each "
        "round, and read_committed consumers",
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="logs, histories and data go here, and stay (an empty or new directory)",
    )
    chosen = parser.parse_args(arguments)
    if chosen.keep is not None and chosen.keep.exists() and any(chosen.keep.iterdir()):
        parser.error(f"--keep {chosen.keep}: not empty; name a new directory")
    if chosen.quorum is None:
        chosen.quorum = chosen.security == PLAINTEXT and not chosen.combined
    if chosen.quorum and chosen.security != PLAINTEXT:
        parser.error("--quorum and --security: the first user would be one node's only")
    directory = chosen.keep or Path(tempfile.mkdtemp(prefix="faults-"))
    tell = partial(print, flush=True)
    signal.signal(
        signal.SIGTERM, lambda number, frame: sys.exit(128 + number)
    )  # what was started ends with it
    summary = Run(
        chosen.seed,
        chosen.rounds,
        directory.absolute(),
        chosen.combined,
        chosen.kind or (),
        chosen.acks,
        tell,
        chosen.security,
        chosen.transactions,
        chosen.quorum,
    ).run()
    print("\n".join(summary.lines()))
    if summary.problems:
        again = " ".join(sys.argv[1:] if arguments is None else arguments)
        print(f"logs, histories and data: {directory}\nreplay: python -m tests.faults.run {again}")
    elif chosen.keep is None:
        shutil.rmtree(directory)
    print(f"{summary.rounds} passed, {1 if summary.problems else 0} failed")
    return 1 if summary.problems else 0


if __name__ == "__main__":
    sys.exit(main())
