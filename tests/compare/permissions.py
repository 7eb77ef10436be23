"""`python -m tests.compare.permissions HOST:PORT`: the cases once more, asked by a client that may
do little, on Apache Kafka there and on our broker, started here; prints what differs.

Both have the settings `AUTHORIZER`: without ACLs all is allowed, so that a node without passwords
can be set up. Then `OWNER` may do everything, and who asks comes from `STRANGER`, with the ACLs of
one profile after the other.

1. The API under test is asked by the stranger; what a case prepares is the owner's.
2. The answers are compared as in `run.py`, with the same table of what may differ.
"""

from __future__ import annotations

import argparse
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.compare.allowed import ALLOWED
from tests.compare.allowed_permissions import ALLOWED_HERE
from tests.compare.run import (
    ENDED,
    ON_CONTROLLER,
    SETTINGS,
    Case,
    Outcome,
    address,
    cases,
    differences,
    ended_with_traceback,
    line_of,
    versions_of,
)
from tests.compare.side import WAIT_SECONDS, ControllerSide, Line, Side
from tests.compat.broker_process import BrokerProcess
from twisted_broker.security.acl import CLUSTER_NAME, Operation, PermissionType, ResourceType

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
OWNER, STRANGER = "127.0.0.1", "127.0.0.2"
ANY_PATTERN, LITERAL = 1, 3
T, G, C, X = (
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.CLUSTER,
    ResourceType.TRANSACTIONAL_ID,
)
Grant = tuple[ResourceType, Operation]
_O = Operation
PROFILES: dict[str, tuple[Grant, ...]] = {
    "nothing": (),
    "describe": ((T, _O.DESCRIBE), (G, _O.DESCRIBE), (X, _O.DESCRIBE)),
    "topics": ((T, _O.ALL),),
    "groups": ((G, _O.ALL), (X, _O.ALL)),
    "clients": ((T, _O.READ), (T, _O.WRITE), (G, _O.READ), (X, _O.WRITE)),
    "deleter": ((T, _O.DELETE), (G, _O.DELETE), (T, _O.CREATE), (T, _O.ALTER)),
    "configs": (
        (T, _O.ALTER_CONFIGS),
        (G, _O.DESCRIBE_CONFIGS),
        (C, _O.DESCRIBE_CONFIGS),
        (C, _O.CREATE),
        (C, _O.IDEMPOTENT_WRITE),
    ),
    "cluster": ((C, _O.DESCRIBE), (C, _O.ALTER), (C, _O.ALTER_CONFIGS)),
    "owner": tuple((each, _O.ALL) for each in (T, G, C, X)),
    "node": ((C, _O.CLUSTER_ACTION),),
}


class StrangersLine(Line):
    """From the stranger's address."""

    def _connection(self) -> socket.socket:
        if self._socket is None:
            self._socket = socket.create_connection(
                (self.host, self.port), WAIT_SECONDS, (STRANGER, 0)
            )
        return self._socket


class StrangersSide(Side):
    """The API under test goes by the stranger's line, all else by the owner's."""

    is_preparing = False

    def begin(self, api: str, version: int) -> None:
        super().begin(api, version)
        self.prefix = f"{self.profile}-{self.prefix}"

    def for_profile(self, name: str) -> None:
        self.profile = name
        self.strangers_line = StrangersLine(self.host, self.port)

    def latest(self, api: str, **fields: Any) -> Any:
        self.is_preparing = True
        try:
            return super().latest(api, **fields)
        finally:
            self.is_preparing = False

    def call(self, api: str, version: int, fields: dict[str, Any]) -> Any:
        if api != self.api or self.is_preparing:
            return super().call(api, version, fields)
        return self.strangers_line.call(api, version, fields)


class StrangersControllerSide(ControllerSide):
    """On the controller's listener all is asked by the stranger."""

    def __init__(self, broker: StrangersSide) -> None:
        super().__init__(broker)
        self.line = StrangersLine(self.host, self.port)
        self.profile = broker.profile

    def begin(self, api: str, version: int) -> None:
        super().begin(api, version)
        self.prefix = f"{self.profile}-{self.prefix}"


def creation(resource: ResourceType, operation: Operation, host: str) -> dict[str, Any]:
    """Of one ACL on all resources of a type."""
    return {
        "resource_type": int(resource),
        "resource_name": CLUSTER_NAME if resource == ResourceType.CLUSTER else "*",
        "resource_pattern_type": LITERAL,
        "principal": "User:*",
        "host": host,
        "operation": int(operation),
        "permission_type": int(PermissionType.ALLOW),
    }


def set_up(side: Side) -> None:
    """From now on nobody but the owner may do anything."""
    kinds = [each for each in ResourceType if each > ResourceType.ANY]
    granted(side, [creation(each, Operation.ALL, OWNER) for each in kinds])


def granted(side: Side, creations: list[dict[str, Any]]) -> None:
    """Creates ACLs, and waits until the broker decides by them."""
    answer = side.latest("CreateAcls", creations=creations)
    assert not any(each.error_code for each in answer.results), answer
    for each in creations:
        wanted = {
            "resource_type_filter": each["resource_type"],
            "resource_name_filter": each["resource_name"],
            "pattern_type_filter": LITERAL,
            "principal_filter": each["principal"],
            "host_filter": each["host"],
            "operation": each["operation"],
            "permission_type": each["permission_type"],
        }
        side.settled("DescribeAcls", lambda answer: answer.resources, **wanted)


def grant_profile(side: Side, name: str) -> None:
    """The stranger may do what this profile names, and nothing else."""
    everything = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": ANY_PATTERN,
        "principal_filter": None,
        "host_filter": STRANGER,
        "operation": 1,
        "permission_type": 1,
    }
    side.latest("DeleteAcls", filters=[everything])
    side.settled("DescribeAcls", lambda answer: not answer.resources, **everything)
    granted(side, [creation(*each, STRANGER) for each in PROFILES[name]])


def compare(
    kafka: StrangersSide, ours: StrangersSide, profiles: list[str], only: list[str], listed: bool
) -> Outcome:
    """Goes through the cases on both, profile by profile, and prints what differs."""
    outcome = Outcome()
    for profile in profiles:
        began = time.monotonic()
        for side in (kafka, ours):
            side.for_profile(profile)
            grant_profile(side, profile)
        rounds: list[tuple[str, Case, Side, Side]] = [
            (name, case, kafka, ours) for name, case in sorted(cases().items())
        ]
        controllers = StrangersControllerSide(kafka), StrangersControllerSide(ours)
        rounds += [
            (name + ON_CONTROLLER, case, *controllers) for name, case in sorted(cases(True).items())
        ]
        for name, case, first, second in rounds:
            if only and name not in only:
                continue
            if name.removesuffix(ON_CONTROLLER) == "ApiVersions":
                continue
            versions = versions_of(name.removesuffix(ON_CONTROLLER), first, second)
            for version in versions if profile == "nothing" else versions[-1:]:
                for found in differences(name, case, version, first, second):
                    if found.label == ENDED and "yes" not in (found.kafka, found.ours):
                        continue  # both missed what the stranger could not do
                    row = outcome.add(found, ALLOWED + ALLOWED_HERE)
                    if row is None or listed:
                        mark = " " if row is None else "~"
                        print(f"{profile} {mark} {name} {line_of(found)}", flush=True)
                outcome.answers += len(second.answers)
        print(f"{profile}: {time.monotonic() - began:.0f} s", flush=True)
    return outcome


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="what an ordinary client is answered")
    parser.add_argument("kafka", type=address, metavar="HOST:PORT", help="a fresh node of 4.3.1")
    parser.add_argument("--only", action="append", default=[], metavar="API")
    parser.add_argument("--profile", action="append", default=[], choices=PROFILES)
    parser.add_argument("--listed", action="store_true", help="print what is listed, too")
    options = parser.parse_args(arguments)
    now_ms = int(time.time() * 1000)
    kafka = StrangersSide("kafka", options.kafka[0], options.kafka[1], now_ms)
    with tempfile.TemporaryDirectory() as directory:
        broker = BrokerProcess(Path(directory), SETTINGS | AUTHORIZER).start()
        try:
            host, port = broker.address
            ours = StrangersSide("ours", host, port, now_ms)
            for side in (kafka, ours):
                set_up(side)
            outcome = compare(
                kafka, ours, options.profile or list(PROFILES), options.only, options.listed
            )
        finally:
            failed = ended_with_traceback(broker)
    print(
        f"{outcome.answers} answers compared; {outcome.answers_that_differ()} differ as allowed, "
        f"{len(outcome.others)} other differences"
    )
    return int(bool(outcome.others)) | failed


if __name__ == "__main__":
    sys.exit(main())
