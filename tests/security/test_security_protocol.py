"""Names of listeners stand for protocols as in Kafka; what has no protocol is refused."""

from __future__ import annotations

import pytest

from twisted_broker.security.security_protocol import (
    SecurityProtocol,
    effective_protocols,
    parse_protocol_map,
    protocol_of,
)
from twisted_broker.settings import ConfigError

DEFAULT = "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT"


def test_protocols_have_kafkas_numbers_and_parts():
    parts = [(each.name, each.value, each.uses_tls, each.uses_sasl) for each in SecurityProtocol]
    assert parts == [
        ("PLAINTEXT", 0, False, False),
        ("SSL", 1, True, False),
        ("SASL_PLAINTEXT", 2, False, True),
        ("SASL_SSL", 3, True, True),
    ]


def test_a_map_is_read_in_any_case():
    assert parse_protocol_map(" client:ssl, Broker:Sasl_Ssl ,") == {
        "CLIENT": SecurityProtocol.SSL,
        "BROKER": SecurityProtocol.SASL_SSL,
    }


@pytest.mark.parametrize("text", ["CLIENT", ":SSL", "A:TLS", "A:SSL,a:PLAINTEXT"])
def test_a_map_that_says_nothing_is_refused(text):
    with pytest.raises(ConfigError, match=r"listener\.security\.protocol\.map"):
        parse_protocol_map(text)


def test_a_typo_in_a_map_is_shown_with_its_listener():
    with pytest.raises(ConfigError) as refused:
        parse_protocol_map("A:SSL,CLIENTS:SASL_SSSL")
    assert str(refused.value) == (
        "setting listener.security.protocol.map='CLIENTS:SASL_SSSL' is refused: it takes for "
        "CLIENTS one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"
    )


def test_a_controllers_name_is_plain_by_default_unless_security_is_in_use():
    """`CONTROLLER` without an entry: PLAINTEXT, but not beside a listener named SSL."""
    names = effective_protocols(DEFAULT, False, ["PLAINTEXT", "CONTROLLER"], ["CONTROLLER"])
    assert protocol_of(names, "CONTROLLER") is SecurityProtocol.PLAINTEXT
    for listeners, controllers in ((["SSL", "C"], ["C"]), (["PLAINTEXT"], ["C", "SASL_SSL"])):
        names = effective_protocols(DEFAULT, False, listeners, controllers)
        with pytest.raises(ConfigError, match="add C:PROTOCOL"):
            protocol_of(names, "C")


def test_a_given_map_is_all_there_is():
    names = effective_protocols("A:SSL", True, ["A"], ["CONTROLLER"])
    assert names == {"A": SecurityProtocol.SSL}
