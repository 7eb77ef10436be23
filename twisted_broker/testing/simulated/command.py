"""`replog simulate FILE`: options and exit statuses.

1. The command runs again in a process whose hashes and addresses are the same each time
   (PYTHONHASHSEED, no randomised addresses): sets are iterated by them.
2. The exit status is 0 when every seed passed, 1 when one failed, 2 for what cannot be simulated.

Source: our own. Not here: the runs (`many.py`).
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from twisted_broker.cli.number_types import WholeNumber
from twisted_broker.installed import install

if TYPE_CHECKING:
    from twisted_broker.testing.simulated.controlled import Controlled
    from twisted_broker.testing.simulated.run import Scenario

_NO_RANDOM_ADDRESSES, _ASK = 0x0040000, 0xFFFFFFFF
_AGAIN = "REPLOG_SIMULATE_AGAIN"
_CLUSTER = "CLUSTER"
_KNOWN = ("brokers", "most_seconds", "settings", "topics")


class CannotSimulateError(click.ClickException):
    """One line, status 2."""

    exit_code = 2


@click.command()
@click.argument("scenario", metavar="FILE[::NAME]")
@click.option(
    "--seeds", type=WholeNumber(1), default=100, show_default=True, help="How many seeds."
)
@click.option(
    "--from", "first", type=WholeNumber(0), default=0, show_default=True, help="The first seed."
)
@click.option("--seed", type=WholeNumber(0), help="This one alone, with all that happens.")
@click.option(
    "--schedule",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The seed and the faults of this file, which a run that failed has written.",
)
@click.option(
    "--jobs",
    type=WholeNumber(1),
    default=lambda: len(os.sched_getaffinity(0)),
    show_default="as many as processors",
    help="Seeds at a time.",
)
@click.option(
    "--digests", is_flag=True, help="Print a digest of each run: equal runs, equal digests."
)
@click.option(
    "--save",
    default=Path(".replog-simulate"),
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder of the schedules that fail.",
)
def simulate(
    scenario: str,
    seeds: int,
    first: int,
    seed: int | None,
    schedule: Path | None,
    jobs: int,
    digests: bool,
    save: Path,
) -> None:
    """Run your program with a cluster, in virtual time, under seeds.

    FILE has `async def simulate(kafka)`, or the function NAME. A seed decides everything: delays,
    which machines are killed and when. The exit status is 1 when a seed fails.
    """
    _run_where_all_is_the_same()
    # Not before: `replog --help` reads this module.
    from twisted.logger import globalLogBeginner

    from twisted_broker.testing.simulated.controlled import Controlled
    from twisted_broker.testing.simulated.many import Seeds, load_schedule

    globalLogBeginner.beginLoggingTo([], redirectStandardIO=False, discardBuffer=True)
    controlled = Controlled()
    try:
        controlled.install()
    except ImportError as error:
        raise CannotSimulateError(f"{error}: {install('simulate')}") from None
    found = load(scenario, controlled)
    runs = Seeds(found, controlled, sys.stdout, scenario, save, jobs)
    if schedule is not None:
        try:
            runs.run_one(*load_schedule(schedule))
        except ValueError as error:
            raise CannotSimulateError(str(error)) from None
    elif seed is not None:
        runs.run_one(seed, None)
    else:
        runs.run(range(first, first + seeds), digests)
    if runs.refused:
        raise CannotSimulateError(f"cannot be simulated: {runs.refused}")
    sys.exit(1 if runs.failed else 0)


def _run_where_all_is_the_same() -> None:
    """Starts this command again, unless it is there already."""
    libc: Any = ctypes.CDLL(None)
    personality = getattr(libc, "personality", None)
    fixed = personality is not None and bool(personality(_ASK) & _NO_RANDOM_ADDRESSES)
    if os.environ.get(_AGAIN) is None:
        if personality is not None and not fixed:
            personality(personality(_ASK) | _NO_RANDOM_ADDRESSES)
        os.environ |= {_AGAIN: "1", "PYTHONHASHSEED": "0"}
        arguments = sys.argv[1:]
        if arguments[:1] == ["simulate"]:  # of `replog`
            del arguments[0]
        os.execv(sys.executable, [sys.executable, "-m", __package__, *arguments])  # noqa: S606
    if not fixed and sys.version_info < (3, 12):
        raise CannotSimulateError(
            f"Python {sys.version_info.major}.{sys.version_info.minor} hashes None by its address, "
            "which this system draws anew in each process: take Python 3.12 or newer"
        )


def load(source: str, controlled: Controlled) -> Scenario:
    """The scenario of FILE[::NAME]. Raises CannotSimulateError."""
    from twisted_broker.testing.simulated.run import Scenario

    file, _, name = source.partition("::")
    name = name or "simulate"
    path = Path(file)
    if not path.is_file():
        raise CannotSimulateError(f"there is no file {file}")
    module = _module(path, controlled)
    function = getattr(module, name, None)
    if not asyncio.iscoroutinefunction(function):
        raise CannotSimulateError(f"{file} has no `async def {name}(kafka)`")
    cluster = getattr(module, _CLUSTER, {})
    if not isinstance(cluster, Mapping) or cluster.keys() - set(_KNOWN):
        raise CannotSimulateError(f"{_CLUSTER} of {file} is a dict of {', '.join(_KNOWN)}")
    return Scenario(function, **cluster)


def _module(path: Path, controlled: Controlled) -> ModuleType:
    """The file, imported as a module; what it imports may stand beside it."""
    from twisted_broker.testing.simulated.controlled import NotSimulated

    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path[:0] = [str(path.parent.resolve()), os.getcwd()]
    controlled.begin(0)
    try:
        spec.loader.exec_module(module)
    except NotSimulated as refused:
        raise CannotSimulateError(f"cannot be simulated: {refused}") from None
    finally:
        controlled.end()
    return module
