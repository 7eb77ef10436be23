"""`python -m tests.compare.run HOST:PORT`: the cases on Apache Kafka there and on our broker,
started here; prints what differs, by API.

Status 0: only what is listed; 1: something else differs; 2: it could not be compared. `--only NAME`
(again for several): these APIs; `--listed`: prints also what is listed; `--ours HOST:PORT`: a
broker that runs already.
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

from tests.compare import admin_cases, data_cases, group_cases
from tests.compare.allowed import ALLOWED, Allowed
from tests.compare.differences import Difference, compared, flat
from tests.compare.side import ROUTE_OF, Side
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


def cases() -> dict[str, Case]:
    """API name -> its cases."""
    found = {}
    for name, route in ROUTE_OF.items():
        if route.broker.max < 0:
            continue
        for module in (data_cases, group_cases, admin_cases):
            case = getattr(module, snake_case(name), None)
            if case is not None:
                found[name] = case
    return found


def versions_of(name: str, *sides: Side) -> list[int]:
    """The lowest, a middle and the highest version that all sides serve."""
    ranges = [side.versions.get(ROUTE_OF[name].api_key, (0, -1)) for side in sides]
    low, high = max(low for low, _ in ranges), min(high for _, high in ranges)
    # Produce is advertised from 0 on by Kafka, too, which serves it from 3 on (KAFKA-18659).
    low = max(low, 3) if name == "Produce" else low
    return sorted({low, (low + high) // 2, high}) if low <= high else []


def differences(
    name: str, case: Case, version: int, kafka: Side, ours: Side
) -> Iterator[Difference]:
    """What differs in one API's cases at one version."""
    answers = []
    for side in (kafka, ours):
        side.begin(name, version)
        trouble = ""
        try:
            case(side, version)
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
        side.note("(the case ran to its end)", trouble or "yes")
        answers.append(
            {label: flat(answer, version, side.normal) for label, answer in side.answers}
        )
    for label in answers[0] | answers[1]:
        both = [found.get(label, {}) for found in answers]
        yield from compared(name, version, label, both[0], both[1])


def listed(found: Difference, allowed: tuple[Allowed, ...] = ALLOWED) -> Allowed | None:
    return next((row for row in allowed if row.matches(found)), None)


def compare(kafka: Side, ours: Side, only: list[str], show_listed: bool) -> int:
    """Prints the comparison; the number of differences that are not listed."""
    used: Counter[Allowed] = Counter()
    asked = bad = 0
    for name, case in sorted(cases().items()):
        if only and name not in only:
            continue
        lines = []
        for version in versions_of(name, kafka, ours):
            for found in differences(name, case, version, kafka, ours):
                row = listed(found)
                if row is not None:
                    used[row] += 1
                if row is None or show_listed:
                    bad += row is None
                    mark = "  " if row is None else " ~"
                    values = f"kafka {found.kafka} | ours {found.ours}"
                    lines.append(f"{mark} v{version} {found.label} | {found.path} | {values}")
            asked += len(ours.answers)
        print(f"{name}: {'as Kafka' if not lines else ''}", flush=True)
        for line in lines:
            print(line)
    print(f"{asked} answers compared, {sum(used.values())} listed differences, {bad} others")
    for row in ALLOWED:
        if not used[row] and not only:
            print(f"nothing was listed by: {row.reason}")
    return bad


def address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="our answers beside Apache Kafka's")
    parser.add_argument("kafka", type=address, metavar="HOST:PORT", help="a fresh node of 4.3.1")
    parser.add_argument("--ours", type=address, metavar="HOST:PORT", help="instead of a new one")
    parser.add_argument("--only", action="append", default=[], metavar="API")
    parser.add_argument("--listed", action="store_true", help="print what is listed, too")
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
    if options.ours is not None:
        return int(
            compare(
                kafka,
                Side("ours", options.ours[0], options.ours[1], now_ms),
                options.only,
                options.listed,
            )
            > 0
        )
    with tempfile.TemporaryDirectory() as directory:
        broker = BrokerProcess(Path(directory), SETTINGS)
        try:
            ours = Side("ours", *broker.start().address, now_ms)
            return int(compare(kafka, ours, options.only, options.listed) > 0)
        finally:
            ours_log: Any = broker.log_tail()
            broker.stop()
            if "Traceback" in ours_log:
                print(ours_log, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
