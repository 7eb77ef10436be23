"""Classes that are in a request: its length, its fields, its names, and who sends it."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from tests.api.random_messages import NAMES
from tests.compare.hostile import LEFT_OUT
from tests.compare.side import CLOSED, ROUTE_OF, SILENT
from tests.compat.test_fuzz import ANSWER_SECONDS, UNREGISTER_BROKER, Aimed, mutate
from tests.hostile.run import Round
from tests.hostile.target import LARGEST, NONE, Target, Wire, framed, head, kind_of
from twisted_broker.api.routes import Route
from twisted_broker.wire.primitives import uvarint
from twisted_broker.wire.schema import encode

STRANGERS_LARGEST = 524_288  # sasl.server.max.receive.size
LOGIN = (17, 18, 36)
FORGED = "forged-line"
NESTED = "((((){1000}){1000}){1000}){1000}"
PATTERNS = (
    NESTED,
    "(a{0}){1000}" * 80,
    "((a{0,0}|){1000}){1000}",
    "(a{1000}){1000}",
    "(a" + "()" * 480 + "){250}",
    "(a|b|-|h|o|s|t|i|l|e|[0-9])*a(a|b){90}",
    "(a?){1000}" * 10,
    "(.*.*.*){60}x",
    "(.|..|...)*x",
    "(" * 500,
    "[" + "a-b" * 300 + "]{290}",
)
TOPIC = "hostile-bystander"
"""the bystander's: it is there"""


def outcome(wire: Wire, frame: bytes, seconds: float) -> str:
    """What comes back on a connection that is there."""
    try:
        wire.send(framed(frame))
        return kind_of(frame, wire.frame(seconds))
    except TimeoutError:
        return SILENT
    except OSError:
        return CLOSED


def served(target: Target) -> Iterator[tuple[Route, int]]:
    """Every API and version of both sides, but those that change the server itself."""
    for route in ROUTE_OF.values():
        low, high = target.versions.get(route.api_key, (0, -1))
        if route.api_key != UNREGISTER_BROKER and route.name not in LEFT_OUT:
            first, last = max(low, route.broker.min), min(high, route.broker.max)
            yield from ((route, version) for version in range(first, last + 1))


def newest(target: Target) -> Iterator[tuple[Route, int]]:
    found = dict(served(target))
    yield from found.items()


# frames


def frame_lengths(one: Round) -> None:
    limit = STRANGERS_LARGEST if one.wants_login else LARGEST
    one.says("lengths -1, -2^31, 2^31-1, one above the limit, 0, 1")
    for size in (-1, -(2**31), 2**31 - 1, limit + 1):
        with one.wire() as wire:
            wire.send(struct.pack(">i", size) + b"abcd")
            one.must(one.note(wire.kind(10.0)) == CLOSED, f"length {size} is not refused")
    for frame in (b"", b"\0"):
        one.result(frame, f"length {len(frame)}")
    count = one.many(1000, 40)
    one.says(f"{count} connections that announce {limit} bytes and send 4")
    with ExitStack() as stack:
        held = [stack.enter_context(one.wire()) for _ in range(count)]
        for wire in held:
            wire.send(struct.pack(">i", limit) + b"abcd")
        one.note(held[-1].kind(one.many(3, 0) or 0.2), count)


def counts_and_lengths(one: Round) -> None:
    one.says("counts and lengths negative, 2^31-1, beyond the end; nulls; trailing bytes; no UTF-8")
    if not one.wants_login:
        for version, bodies in ((4, list(_classic())), (9, list(_compact()))):
            for what, body in bodies:
                one.result(head(3, version) + body, f"Metadata {version}: {what}")
    pairs = list(newest(one.target)) if not one.whole else list(served(one.target))
    if one.wants_login:
        pairs = [each for each in pairs if each[0].api_key in LOGIN]
    chance = random.Random(7)
    if not one.whole and not one.wants_login:
        pairs = chance.sample(pairs, 12)
    sampler = Aimed(chance, TOPIC)
    count = one.many(4, 1)
    one.says(f"{count * len(pairs)} random requests of {len(pairs)} APIs and versions, damaged")
    for route, version in pairs:
        for _ in range(count):
            body = encode(sampler.message(route.request_class(), version), version)
            frame = mutate(head(route.api_key, version) + body, chance)
            one.note(one.target.result(frame, one.wire, ANSWER_SECONDS))


def _classic() -> Iterator[tuple[str, bytes]]:
    """Metadata 4: a list of names, a flag."""
    for count in (-2, -(2**31), 2**31 - 1, 3):
        yield f"count {count}", struct.pack(">i", count) + b"\0\1t\0"
    for length in (-2, -1, 32767, 2):
        yield f"name of {length} bytes", struct.pack(">ih", 1, length) + b"t\0"
    yield "trailing bytes", struct.pack(">ih", 1, 1) + b"t\0" + bytes(50)
    yield "no UTF-8", struct.pack(">ih", 1, 4) + b"\xff\xfe\xc0\x80" + b"\0"
    yield "nothing", b""


def _compact() -> Iterator[tuple[str, bytes]]:
    """Metadata 9."""
    for count in (2**31 - 1, 2**32 - 1, 400_001):
        yield f"count {count}", uvarint(count) + b"\2t\0" + bytes(4)
    for length in (0, 2**32 - 1, 2**31, 1000):
        yield f"name of {length - 1} bytes", b"\2" + uvarint(length) + b"t\0" + bytes(4)
    yield "trailing bytes", b"\1\0\0\0\0" + bytes(50)


def tagged_fields(one: Round) -> None:
    most = [250_000] if one.wants_login else [2_000_000, *([19_000_000] if one.whole else [])]
    for count in most:
        one.says(f"a header with {count:,} empty tagged fields")
        one.result(head(18, 3)[:-1] + uvarint(count) + b"\0\0" * count + b"\1\1\0", "header")
    count = 100_000
    ascending = b"".join(uvarint(tag) + b"\0" for tag in range(count))
    one.says(f"{count:,} ascending ones in header and body; out of order, twice, beyond the end")
    body = b"\2a\2b"
    one.result(head(18, 3)[:-1] + uvarint(count) + ascending + body + b"\0", "ascending")
    one.result(head(18, 3) + body + uvarint(count) + ascending, "ascending in the body")
    for tags in (
        b"\2\6\0\5\0",
        b"\2\5\0\5\0",
        b"\1\5\5ab",
        b"\1\5\xff\xff\xff\xff\x0f",
        b"\xff\xff\xff\xff\x0f",
        b"\5",
    ):
        one.result(head(18, 3) + body + tags, f"tags {tags.hex()}")
        one.result(head(18, 3)[:-1] + tags + body + b"\0", f"header's tags {tags.hex()}")


def varints(one: Round) -> None:
    one.says("lengths as varints of 6 and 10 bytes, above 32 bits, padded, cut")
    for varint in (
        b"\xff" * 5 + b"\x01",
        b"\xff" * 9 + b"\x01",
        b"\xff" * 10 + b"\x01",
        b"\xff\xff\xff\xff\x1f",
        b"\xff\xff\xff\xff\x0f",
        b"\xff\xff\xff\xff\x07",
        b"\x80\x80\x80\x80\x80\x00",
        b"\x82\x00",
        b"\xff" * 1000,
        b"\x80",
    ):
        one.result(head(18, 3) + varint + b"a\2b\0", f"length {varint[:12].hex()}")
        one.result(head(18, 3)[:-1] + varint + b"\2a\2b\0", f"tags {varint[:12].hex()}")
        if not one.wants_login:
            one.result(head(3, 9) + varint + b"\2t\0\0\0\0\0", f"count {varint[:12].hex()}")


def empty_arrays(one: Round) -> None:
    pairs = list(served(one.target)) if one.whole else list(newest(one.target))
    if one.wants_login:
        pairs = [each for each in pairs if each[0].api_key in LOGIN]
    one.says(f"{len(pairs)} APIs and versions with nothing but defaults and empty arrays")
    for route, version in pairs:
        frame = one.target.request(route.name, version)
        one.result(
            frame,
            f"{route.name} {version}",
            may_wait=route.name in ("Fetch", "JoinGroup", "Produce"),
        )
    if not one.target.has_sasl and not one.target.address.ca:
        _to_the_controller(one)


def _to_the_controller(one: Round) -> None:
    """FetchSnapshot without topics (CVE-2026-83525), where the controller can be reached."""
    asked = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
    version = one.target.version("DescribeQuorum")
    if version < 2:
        return
    with one.wire() as wire:
        answer = wire.call("DescribeQuorum", version, {"topics": [asked]})
    for node in answer.nodes:
        for listener in node.listeners:
            address = one.target.address._replace(host=listener.host, port=listener.port)
            one.says("FetchSnapshot and Fetch without topics to the controller")
            for api in ("FetchSnapshot", "Fetch"):
                route = ROUTE_OF[api]
                body = encode(route.request_class()(), route.controller.max)
                with Wire(address) as wire:
                    frame = head(route.api_key, route.controller.max) + body
                    one.note(outcome(wire, frame, 1.0))
            with Wire(address) as wire:
                wire.call("ApiVersions", 0, {})  # it is there


# who comes in


def sasl_phase(one: Round) -> None:
    if not one.target.has_sasl:
        one.says("SaslHandshake and SaslAuthenticate where there is no SASL")
        for api, fields in (
            ("SaslHandshake", {"mechanism": "PLAIN"}),
            ("SaslAuthenticate", {"auth_bytes": b"\0a\0b"}),
        ):
            kind = one.result(one.target.request(api, 1, **fields), api)
            one.must(kind != NONE, f"{api} is accepted")
        return
    with one.target.stranger() as wire:
        offered = wire.call("SaslHandshake", 1, {"mechanism": "none"}).mechanisms
    if one.stranger:
        _before_login(one)
        _bad_logins(one, offered)
    else:
        _again(one, offered)


def _before_login(one: Round) -> None:
    pairs = list(served(one.target)) if one.whole else list(newest(one.target))
    pairs = [each for each in pairs if each[0].api_key not in LOGIN]
    one.says(f"{len(pairs)} other APIs and versions, keys that nobody has")
    frames = [(f"{r.name} {v}", one.target.request(r.name, v)) for r, v in pairs]
    frames += [
        (f"API {key}", struct.pack(">hhih", key, 0, 7, -1)) for key in (-1, 4, 5, 6, 7, 99, 32767)
    ]
    for what, frame in frames:
        kind = one.result(frame, what)
        one.must(kind == CLOSED, f"{what} is answered before login: {kind}")


def _handshake(wire: Wire, mechanism: str) -> Any:
    return wire.call("SaslHandshake", 1, {"mechanism": mechanism})


def _token(one: Round, mechanism: str, tokens: list[bytes], what: str) -> str:
    """Sends tokens one after another; what came back for the last, which lets nobody in."""
    kind = CLOSED
    with one.target.stranger() as wire:
        _handshake(wire, mechanism)
        for token in tokens:
            frame = one.target.request("SaslAuthenticate", 1, auth_bytes=token)
            kind = outcome(wire, frame, 5.0)
        one.must(kind != NONE, f"{mechanism}: {what} is accepted")
        kind = one.note(kind)
        after = outcome(wire, one.target.request("Metadata", topics=[]), 5.0)
        one.must(after == CLOSED, f"{mechanism}: after {what} requests are served: {after}")
    return kind


def _bad_logins(one: Round, offered: list[str]) -> None:
    one.says("handshakes twice and of no mechanism; tokens without a handshake, damaged, long")
    for mechanism in ("", "GSSAPI", "x" * 30_000, f"PLAIN\n{FORGED}"):
        with one.target.stranger() as wire:
            frame = one.target.request("SaslHandshake", 1, mechanism=mechanism)
            kind = one.note(outcome(wire, frame, 5.0))
            one.must(kind != NONE, f"mechanism {mechanism[:20]!r} is accepted")
    with one.target.stranger() as wire:
        _handshake(wire, offered[0])
        frame = one.target.request("SaslHandshake", 1, mechanism=offered[0])
        one.must(one.note(outcome(wire, frame, 5.0)) != NONE, "a second handshake is accepted")
    with one.target.stranger() as wire:
        frame = one.target.request("SaslAuthenticate", 1, auth_bytes=b"\0a\0b")
        one.must(one.note(outcome(wire, frame, 5.0)) != NONE, "a token without a handshake")
    user, password = (one.target.address.user.encode(), one.target.address.password.encode())
    for mechanism in offered:
        good = b"n,,n=%b,r=hostile" % user
        plain = {
            "nothing": [b""],
            "nulls": [bytes(100)],
            "another's name": [b"\0".join((b"admin2", user, password))],
            "no password": [b"\0%b\0" % user],
            "an empty user": [b"\0\0" + password],
            "a forged line": [b"\0\n%b\0x" % FORGED.encode()],
            "500 kB": [b"\0%b\0" % user + b"x" * 500_000],
            "no UTF-8": [b"\0\xff\xfe\0\xff"],
        }
        scram = {
            "nothing": [b""],
            "no header": [b"n=a,r=b"],
            "channel binding": [b"p=tls-unique," + good[2:]],
            "another's name": [b"n,a=admin2,n=%b,r=x" % user],
            "an extension": [b"n,,m=x,n=%b,r=x" % user],
            "no nonce": [b"n,,n=%b,r=" % user],
            "no UTF-8": [b"n,,n=\xff\xfe,r=x"],
            "500 kB": [good + b"x" * 500_000],
            "a forged line": [b"n,,n=\n%b,r=x" % FORGED.encode()],
            "another nonce": [good, b"c=biws,r=other,p=AAAA"],
            "an empty proof": [good, b"c=biws,r=hostile,p="],
            "a first message twice": [good, good],
        }
        oauth = {"nothing": [b""], "no token": [b"n,,\1auth=Bearer \1\1"], "dots": [b"n,,\1..\1\1"]}
        cases = scram if mechanism.startswith("SCRAM") else plain
        cases = oauth if mechanism == "OAUTHBEARER" else cases
        chance = list(cases.items())
        for what, tokens in chance if one.whole else random.Random(mechanism).sample(chance, 2):
            _token(one, mechanism, tokens, what)


def _again(one: Round, offered: list[str]) -> None:
    one.says("handshakes and tokens once more, of every mechanism")
    for mechanism in offered:
        with one.target.logged_in() as wire:
            frame = one.target.request("SaslHandshake", 1, mechanism=mechanism)
            first = outcome(wire, frame, 5.0)
            one.note(first)
            frame = one.target.request("SaslAuthenticate", 1, auth_bytes=b"\0nobody\0x")
            kind = one.note(outcome(wire, frame, 5.0))
            one.must(kind != NONE, f"{mechanism}: a second login as nobody is accepted")


def names(one: Round) -> None:
    text = f"x\n{FORGED}"
    one.says("client ids, software and users with line ends")
    for version in (0, 3):
        frame = encode(ROUTE_OF["ApiVersions"].request_class()(client_software_name=text), version)
        one.result(head(18, version, text) + frame, "a client id")
    one.result(head(3, 9, text) + b"\xff", "a client id before damage")
    if not one.wants_login:
        _topics_and_groups(one, [*NAMES, "/etc/passwd", "t" * 5000, "hostile-names-\U0001f600"])
    if one.log:
        found = one.log.read_text(errors="replace")
        one.must(f"\n{FORGED}" not in found, "a line of the log is forged")


def _topics_and_groups(one: Round, wanted: list[str]) -> None:
    wanted = [*dict.fromkeys(wanted)]
    if not one.whole:
        wanted = [name for name in wanted if name != "t"][2:9]
    one.says(f"{len(wanted)} names of topics and groups, `../x`, nulls, line ends, 250 characters")
    target = one.target
    for name in wanted:
        legal = name in ("t", "g", "n" * 249) or name.startswith("__")
        topic = {"name": name, "num_partitions": 1, "replication_factor": 1}
        if not legal:
            kind = one.result(
                target.request("CreateTopics", topics=[topic], timeout_ms=5000), f"create {name!r}"
            )
            one.must(kind != NONE, f"topic {name[:20]!r} is created")
        part = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1}
        for api, version, fields in (
            ("Metadata", 8, {"topics": [{"name": name}], "allow_auto_topic_creation": not legal}),
            ("ListOffsets", 6, _with_parts(name, {"partition_index": 0, "timestamp": -1})),
            ("OffsetCommit", 8, {"group_id": name, **_with_parts(name, part)}),
            ("OffsetFetch", 5, {"group_id": name}),
            ("DescribeGroups", 4, {"groups": [name]}),
            ("DeleteTopics", 4, {"topic_names": [] if legal else [name], "timeout_ms": 1000}),
            ("InitProducerId", 2, {"transactional_id": name, "transaction_timeout_ms": 1000}),
        ):
            one.result(target.request(api, version, **fields), f"{api} {name[:20]!r}")


def _with_parts(topic: str, partition: dict[str, Any]) -> dict[str, Any]:
    return {"topics": [{"name": topic, "partitions": [partition]}]}


def patterns(one: Round) -> None:
    """Texts whose work multiplies: what is repeated may be empty, or match in many ways."""
    one.says(f"{len(PATTERNS)} patterns of ids, nested counts; long ids; settings with patterns")
    if one.wants_login:
        return
    version = one.target.version("ListTransactions")
    if version >= 2:
        _long_ids(one, one.many(30, 3))
        for pattern in PATTERNS:
            one.result(
                one.target.request("ListTransactions", 2, transactional_id_pattern=pattern),
                f"pattern {pattern[:40]!r}",
                may_wait=True,  # for each id in turn, while others are served
            )
    for kind, resource, name, value in (
        (16, "hostile", "match", "client_id=" + "(" * 30_000),
        (16, "hostile", "match", "client_id=" + NESTED),
        (16, "hostile", "match", "client_id=a{99999999999}"),
        (2, "hostile-bystander", "retention.ms", "9" * 30_000),
        (2, "hostile-bystander", "leader.replication.throttled.replicas", "0:1," * 8_000),
        (4, "1", "listener.name.secure.ssl.principal.mapping.rules", f"RULE:{NESTED}/a/,DEFAULT"),
        (4, "1", "listener.name.secure.ssl.keystore.key", "-----BEGIN PRIVATE KEY-----" * 1_200),
    ):
        change = {"name": name, "config_operation": 0, "value": value}
        asked = {"resource_type": kind, "resource_name": resource, "configs": [change]}
        one.result(
            one.target.request("IncrementalAlterConfigs", 1, resources=[asked], validate_only=True),
            f"{name}={value[:40]}",
        )


def _long_ids(one: Round, count: int) -> None:
    """Transactional ids that a pattern is tried on, once there is a coordinator."""
    one.result(
        one.target.request("FindCoordinator", 3, key="hostile", key_type=1), "the coordinator"
    )
    ends = time.monotonic() + 10
    for number in range(count):
        name = f"hostile-{number}-" + "".join(random.Random(number).choices("ab", k=30_000))
        frame = one.target.request(
            "InitProducerId", 2, transactional_id=name, transaction_timeout_ms=10_000
        )
        while one.result(frame, "a long id") != NONE and time.monotonic() < ends:
            time.sleep(0.05)


def authorisation(one: Round) -> None:
    """Requests that only nodes of the cluster send."""
    inner = [each for each in ROUTE_OF.values() if each.cluster_action]
    one.says(f"{len(inner)} APIs of brokers and controllers; a fetch as a follower; markers")
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    topic = {"topic": TOPIC, "partitions": [part]}
    marker = {
        "producer_id": 1,
        "producer_epoch": 0,
        "transaction_result": True,
        "topics": [{"name": TOPIC, "partition_indexes": [0]}],
        "coordinator_epoch": 0,
    }
    requests = [
        (
            "Fetch as a follower",
            one.target.request("Fetch", 11, replica_id=1, max_bytes=1000, topics=[topic]),
        ),
        ("WriteTxnMarkers", one.target.request("WriteTxnMarkers", 1, markers=[marker])),
    ]
    for route in inner:
        version = route.controller.max if route.controller.max >= 0 else route.broker.max
        request = route.request_class()()
        if route.name.endswith(("ShareGroupState", "ShareGroupStateSummary")):
            # An answer about nothing has no place for an error.
            (topics,) = (each for each in request.FIELDS if each.name == "topics")
            (partitions,) = (each for each in topics.element.FIELDS if each.name == "partitions")
            request.topics = [topics.element(partitions=[partitions.element()])]
        body = encode(request, version)
        requests.append((route.name, head(route.api_key, version) + body))
    for what, frame in requests:
        kind = one.result(frame, what)
        if one.wants_login:
            one.must(kind == CLOSED, f"{what} before login: {kind}")
        elif one.ordinary:
            refused = kind == CLOSED or kind.endswith("AUTHORIZATION_FAILED")
            one.must(refused, f"{what} from an ordinary user: {kind}")
