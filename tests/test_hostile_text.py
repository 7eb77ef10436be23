"""What parses text that a client or a file sends takes a time in proportion to its length.

Each text is longer than any client can send. A parser that looks at each place for all that follows
would take minutes for it: no clock is read, the time limit tells.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable

import pytest

from twisted_broker.config import BROKER_SETTINGS
from twisted_broker.net.listeners import parse_endpoints
from twisted_broker.security.principal_mapping import PrincipalMapper
from twisted_broker.security.sasl.access_token import parse_token
from twisted_broker.security.sasl.errors import SaslFailure
from twisted_broker.security.sasl.jaas import PLAIN, JaasError, parse_jaas
from twisted_broker.security.sasl.plain import PlainServer
from twisted_broker.security.sasl.scram import SHA_256, ScramServer
from twisted_broker.security.security_protocol import parse_protocol_map
from twisted_broker.settings import ConfigError, PropertiesError, client_properties
from twisted_broker.topic_names import name_problem

pytestmark = pytest.mark.timeout(20)
SIZE = 600_000
UNITS = (
    "a", " ", ",", ";", "=", "\\", "/", '"', "'", "(", "[", "{", "-", ".", ".*", "(a*)*", "a{9}",
    "%", "\x01auth=Bearer a", "a=b,", "n,,n=a,r=", "=2C", 'user_a="b" ', "\\u0041", "a=\\\n",
    "RULE:a/b/,", "DEFAULT,", "User:a;", "A:SSL,", "a://b:1,", '{"a":',
    "-----BEGIN PRIVATE KEY-----", "-----BEGIN CERTIFICATE-----\n", "-----BEGIN ", "-----END ",
)  # fmt: skip
NAMES = ",".join(f"{number:x}" for number in range(60_000))
"""Entries that all differ."""
REFUSALS = (ConfigError, JaasError, PropertiesError, SaslFailure, ValueError)


def scram(text: str) -> None:
    ScramServer(SHA_256, lambda name: None, "nonce").respond(text.encode())


def token(payload: str) -> None:
    parse_token(f"a.{urlsafe_b64encode(payload.encode()[:48_000]).decode().rstrip('=')}.a")


PARSERS: dict[str, Callable[[str], object]] = {
    "client.properties": lambda text: client_properties(text.encode()),
    "sasl.jaas.config": parse_jaas,
    "options of sasl.jaas.config": lambda text: parse_jaas(f"{PLAIN} required {text}"),
    "ssl.principal.mapping.rules": PrincipalMapper,
    "a pattern of them": lambda text: PrincipalMapper(f"RULE:{text}/a/"),
    "listener.security.protocol.map": parse_protocol_map,
    "listeners": lambda text: parse_endpoints("listeners", text.split(",")),
    "log.dirs": BROKER_SETTINGS["log.dirs"].parse,
    "num.partitions": BROKER_SETTINGS["num.partitions"].parse,
    "a topic": name_problem,
    "PLAIN": lambda text: PlainServer({}).respond(text.encode()),
    "SCRAM, cut": lambda text: scram(text[:8_000]),
    "SCRAM, a name": lambda text: scram(f"n,,n={text[:8_000]}"),
    "an access token": token,
}


@pytest.mark.parametrize("parser", PARSERS)
def test_the_time_is_in_proportion_to_the_text(parser: str) -> None:
    for unit in UNITS:
        parsed(parser, (unit * (SIZE // len(unit) + 1))[:SIZE])


@pytest.mark.parametrize(
    ("parser", "before", "after"),
    [
        ("listeners", "n", "://h:1"),
        ("listener.security.protocol.map", "n", ":SSL"),
        ("options of sasl.jaas.config", "user_n", '="x" '),
        ("log.dirs", "/n", ""),
    ],
)
def test_many_entries_that_differ(parser: str, before: str, after: str) -> None:
    comma = "" if after.endswith(" ") else ","
    parsed(parser, before + NAMES.replace(",", after + comma + before) + after)


def parsed(parser: str, text: str) -> None:
    try:
        PARSERS[parser](text)
    except REFUSALS as refusal:
        assert str(refusal)
