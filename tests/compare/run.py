"""`python -m tests.compare.run HOST:PORT`: the cases on Apache Kafka there and on our broker,
started here; prints what differs, by API.

Status 0: only what is listed; 1: something else differs, a row of the table was of no use in a
whole run, or our log has a traceback; 2: it could not be compared. `--only NAME` (again for
several): these APIs; `--listed`: prints also what is listed; `--ours HOST:PORT`: a broker that runs
already; `--hostile COUNT`: damaged requests instead (`hostile.py`); `--save FILE`: every
difference, a line each, to compare two runs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.compare import (
    acl_cases,
    admin_cases,
    consumer_group_cases,
    controller_cases,
    data_cases,
    group_cases,
    quorum_cases,
    sasl_cases,
    share_fetch_cases,
    share_group_cases,
    share_state_cases,
    streams_group_cases,
    telemetry_cases,
    token_cases,
    transaction_cases,
)
from tests.compare.allowed import ALLOWED, Allowed
from tests.compare.differences import Difference, compared, flat
from tests.compare.hostile import collected, hostile
from tests.compare.side import ROUTE_OF, ControllerSide, Side
from tests.compat.broker_process import BrokerProcess
from twisted_broker.api.routes import snake_case

SETTINGS = {
    "node.id": "1",
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
Case = Callable[[Side, int], None]
ON_CONTROLLER = "@controller"
ENDED = "(the case ran to its end)"
MORE = {"ApiVersions": (3,)}  # leaves out features from 0 on, which 4 has


def cases(on_controller: bool = False) -> dict[str, Case]:
    """API name -> its cases on the one kind of listener."""
    modules: tuple[Any, ...] = (
        (controller_cases, token_cases)
        if on_controller
        else (
            data_cases,
            group_cases,
            consumer_group_cases,
            share_fetch_cases,
            share_group_cases,
            share_state_cases,
            streams_group_cases,
            telemetry_cases,
            transaction_cases,
            sasl_cases,
            admin_cases,
            acl_cases,
            token_cases,
            quorum_cases,
        )
    )
    found = {}
    for name, route in ROUTE_OF.items():
        if route.versions(on_controller).max < 0:
            continue
        for module in modules:
            case = getattr(module, snake_case(name), None)
            if case is not None:
                found[name] = case
    return found


def versions_of(name: str, *sides: Side) -> list[int]:
    """The lowest, a middle and the highest version that all sides serve, and those of `MORE`."""
    ranges = [side.versions.get(ROUTE_OF[name].api_key, (0, -1)) for side in sides]
    low, high = max(low for low, _ in ranges), min(high for _, high in ranges)
    # Produce is advertised from 0 on by Kafka, too, which serves it from 3 on (KAFKA-18659).
    low = max(low, 3) if name == "Produce" else low
    more = {version for version in MORE.get(name, ()) if low <= version <= high}
    return sorted({low, (low + high) // 2, high} | more) if low <= high else []


def differences(
    name: str, case: Case, version: int, kafka: Side, ours: Side
) -> Iterator[Difference]:
    """What differs in one API's cases at one version. `name` may say that it is the controller's
    listener.
    """
    answers, ends = [], []
    for side in (kafka, ours):
        side.begin(name.removesuffix(ON_CONTROLLER), version)
        trouble = ""
        try:
            case(side, version)
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
        ends.append(trouble or "yes")
        answers.append(
            {label: flat(answer, version, side.normal) for label, answer in side.answers}
        )
    if ends != ["yes", "yes"]:  # what stopped on both sides in the same way compared nothing
        yield Difference(name, version, ENDED, "", ends[0], ends[1])
        answers = [
            {k: v for k, v in each.items() if k in answers[1 - n]} for n, each in enumerate(answers)
        ]
    for label in answers[0] | answers[1]:
        both = [found.get(label, {}) for found in answers]
        yield from compared(name, version, label, both[0], both[1])


def listed(found: Difference, allowed: tuple[Allowed, ...] = ALLOWED) -> Allowed | None:
    return next((row for row in allowed if row.matches(found)), None)


class Outcome:
    """What one run found."""

    def __init__(self) -> None:
        self.answers = 0
        self.used: Counter[Allowed] = Counter()
        self.listed: list[Difference] = []
        self.others: list[Difference] = []

    def add(self, found: Difference, allowed: tuple[Allowed, ...] = ALLOWED) -> Allowed | None:
        row = listed(found, allowed)
        if row is None:
            self.others.append(found)
        else:
            self.used[row] += 1
            self.listed.append(found)
        return row

    def stale(self) -> list[Allowed]:
        """Rows that nothing used: after a whole run they must go."""
        return [row for row in ALLOWED if not self.used[row]]

    def answers_that_differ(self) -> int:
        """As allowed only, not otherwise."""
        bad = {(each.api, each.version, each.label) for each in self.others}
        return len({(each.api, each.version, each.label) for each in self.listed} - bad)


def compare(kafka: Side, ours: Side, only: list[str], show_listed: bool) -> Outcome:
    """Goes through the cases on both, and prints what differs."""
    outcome = Outcome()
    rounds = [(name, case, kafka, ours) for name, case in sorted(cases().items())]
    controllers = ControllerSide(kafka), ControllerSide(ours)
    rounds += [
        (name + ON_CONTROLLER, case, *controllers) for name, case in sorted(cases(True).items())
    ]
    rounds = [each for each in rounds if not only or each[0] in only]
    for number, (name, case, first, second) in enumerate(rounds, 1):
        began, before = time.monotonic(), outcome.answers
        lines = []
        for version in versions_of(name.removesuffix(ON_CONTROLLER), first, second):
            for found in differences(name, case, version, first, second):
                row = outcome.add(found)
                if row is None or show_listed:
                    mark = "  " if row is None else " ~"
                    lines.append(f"{mark} {line_of(found)}")
            outcome.answers += len(second.answers)
        print(
            f"{number}/{len(rounds)} {name}: {outcome.answers - before} answers in "
            f"{time.monotonic() - began:.0f} s",
            *lines,
            sep="\n",
            flush=True,
        )
    return outcome


def line_of(found: Difference) -> str:
    return (
        f"v{found.version} {found.label} | {found.path} | kafka {found.kafka} | ours {found.ours}"
    )


def concluded(outcome: Outcome, whole: bool) -> int:
    """Prints the summary; the status of the run. A `whole` run uses every row of the table."""
    stale = outcome.stale() if whole else []
    for row in stale:
        print(f"nothing was listed by: {row}")
    print(
        f"{outcome.answers} answers compared; {outcome.answers_that_differ()} differ as allowed, "
        f"in {len(outcome.listed)} fields; {len(outcome.others)} other differences, "
        f"{len(stale)} rows that nothing used"
    )
    return int(bool(outcome.others or stale))


def address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="our answers beside Apache Kafka's")
    parser.add_argument("kafka", type=address, metavar="HOST:PORT", help="a fresh node of 4.3.1")
    parser.add_argument("--ours", type=address, metavar="HOST:PORT", help="instead of a new one")
    parser.add_argument("--only", action="append", default=[], metavar="API")
    parser.add_argument("--listed", action="store_true", help="print what is listed, too")
    parser.add_argument("--hostile", type=int, metavar="COUNT", help="damaged requests instead")
    parser.add_argument("--seed", type=int, default=1, help="of --hostile")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write every difference there")
    options = parser.parse_args(arguments)
    now_ms = int(time.time() * 1000)
    try:
        kafka = Side("kafka", options.kafka[0], options.kafka[1], now_ms)
    except (OSError, AssertionError) as error:
        print(
            f"no Apache Kafka at KAFKA={options.kafka[0]}:{options.kafka[1]}: {error}",
            file=sys.stderr,
        )
        return 2
    if not options.only and kafka.latest("Metadata", topics=None).topics:
        print("KAFKA has topics: format it afresh for a whole run", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as directory:
        broker = None
        try:
            if options.ours is None:
                broker = BrokerProcess(Path(directory), SETTINGS).start()
            host, port = options.ours if broker is None else broker.address
            ours = Side("ours", host, port, now_ms)
            if options.hostile:
                pairs = collected(kafka, ours, cases())
                hung = hostile(kafka, ours, pairs, options.hostile, options.seed)
            else:
                outcome = compare(kafka, ours, options.only, options.listed)
        finally:
            failed = broker is not None and ended_with_traceback(broker)
    if options.hostile:
        return hung | failed
    if options.save:
        found = sorted(f"{each.api} {line_of(each)}" for each in outcome.listed + outcome.others)
        options.save.write_text("".join(f"{line}\n" for line in found))
    return concluded(outcome, not options.only) | failed


def ended_with_traceback(broker: BrokerProcess) -> bool:
    """Stops our broker; what its log says of exceptions is printed."""
    broker.stop()
    log = broker.log.read_text(errors="replace")
    if "Traceback" in log:
        print(log[log.index("Traceback") :][:6000], file=sys.stderr)
    return "Traceback" in log


if __name__ == "__main__":
    sys.exit(main())
