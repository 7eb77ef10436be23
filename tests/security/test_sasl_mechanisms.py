"""SASL mechanisms: both sides, RFC 7677's example, and what a hostile peer may send."""

from __future__ import annotations

import contextlib
import hashlib
import time
from base64 import b64decode, b64encode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twisted_broker.security.sasl import jaas, scram
from twisted_broker.security.sasl.errors import SaslFailure
from twisted_broker.security.sasl.plain import PlainClient, PlainServer
from twisted_broker.security.sasl.scram import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    SHA_256,
    SHA_512,
    ScramClient,
    ScramCredential,
    ScramServer,
    credential_of,
    salted_password,
)

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)


def credential(mechanism, password="secret", iterations=MIN_ITERATIONS):
    salted = salted_password(mechanism, password, b"salt", iterations)
    return credential_of(mechanism, salted, b"salt", iterations)


STORED = {each: credential(each) for each in (SHA_256, SHA_512)}


def scram_pair(mechanism=SHA_256, user="alice", password="secret", stored=None):
    found = {"alice": stored or STORED[mechanism], "a,b=c": STORED[mechanism]}
    return (
        ScramServer(mechanism, found.get, "servernonce"),
        ScramClient(mechanism, user, password, "clientnonce"),
    )


def talk(server, client):
    message = client.first()
    while message is not None:
        message = client.respond(server.respond(message))


# PLAIN


def plain(message: bytes, users=None) -> PlainServer:
    server = PlainServer({"alice": "secret"} if users is None else users)
    server.respond(message)
    return server


@settings(max_examples=30)
@given(NAMES, NAMES)
def test_plain_lets_in_who_knows_the_password(name, password):
    server, client = PlainServer({name: password}), PlainClient(name, password)
    talk(server, client)
    assert server.complete and client.complete
    assert server.authorization_id == name


@pytest.mark.parametrize(
    "message",
    [
        b"\0alice\0wrong",
        b"\0bob\0secret",
        b"bob\0alice\0secret",  # CVE-2017-12610
        b"\0alice\0",
        b"\0\0secret",
        b"alice\0secret",
        b"\0alice\0secret\0",
        b"\0\xff\0secret",
        b"",
    ],
)
def test_plain_refuses(message):
    with pytest.raises(SaslFailure) as failed:
        plain(message)
    assert "secret" not in str(failed.value)


def test_plain_does_not_say_to_the_client_which_of_name_and_password_was_wrong():
    said = set()
    for message in (b"\0alice\0wrong", b"\0bob\0secret"):
        with pytest.raises(SaslFailure) as failed:
            plain(message)
        said.add(failed.value.public)
    assert len(said) == 1


def test_plain_accepts_an_authorization_id_that_is_the_name():
    assert plain(b"alice\0alice\0secret").authorization_id == "alice"


@settings(max_examples=30)
@given(st.binary())
def test_plain_meets_any_message(message):
    with contextlib.suppress(SaslFailure):
        assert plain(message).authorization_id == "alice"


# SCRAM


def test_the_example_of_rfc_7677():
    salt = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    stored = credential_of(SHA_256, salted_password(SHA_256, "pencil", salt, 4096), salt, 4096)
    server = ScramServer(SHA_256, {"user": stored}.get, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    client = ScramClient(SHA_256, "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    first = client.first()
    assert first == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    second = client.respond(server.respond(first))
    assert second == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    last = server.respond(second)
    assert last == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert client.respond(last) is None
    assert client.complete and server.complete


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512])
@pytest.mark.parametrize("user", ["alice", "a,b=c"])
def test_scram_lets_in_who_knows_the_password(mechanism, user):
    server, client = scram_pair(mechanism, user)
    talk(server, client)
    assert server.complete and client.complete
    assert server.authorization_id == user


def test_scram_refuses_a_wrong_password_and_an_unknown_user():
    for pair in (scram_pair(password="wrong"), scram_pair(user="bob")):
        with pytest.raises(SaslFailure) as failed:
            talk(*pair)
        assert failed.value.public is None
        assert not pair[0].complete


def test_a_stored_credential_of_few_iterations_is_refused():
    weak = STORED[SHA_256]._replace(iterations=MIN_ITERATIONS - 1)
    with pytest.raises(SaslFailure, match="iterations"):
        talk(*scram_pair(stored=weak))


def after_first(change):
    """The server's answer to the client's last message, changed."""
    server, client = scram_pair()
    message = client.respond(server.respond(client.first()))
    assert message is not None
    return server, server.respond(change(message))


def test_a_nonce_that_is_sent_twice_names_its_library():
    """librdkafka before 2.6.1; Apache Kafka 4 refuses it as well (CVE-2024-56128)."""
    with pytest.raises(SaslFailure, match=r"librdkafka before 2\.6\.1"):
        after_first(lambda message: message.replace(b"clientnonce", b"clientnonceclientnonce"))


def test_the_nonce_of_the_last_message_is_compared():
    """CVE-2024-56128."""
    for change in (
        lambda message: message.replace(b"servernonce", b"othernonce1"),
        lambda message: message.replace(b"servernonce", b""),
        lambda message: message.replace(b"clientnonce", b"othernonce1"),
    ):
        with pytest.raises(SaslFailure, match="nonce"):
            after_first(change)


def test_the_header_of_the_last_message_is_compared():
    for header in (b"eSws", b"", b"biwsYQ==", b"!"):
        with pytest.raises(SaslFailure, match="header"):
            after_first(lambda message, header=header: message.replace(b"c=biws", b"c=" + header))


def test_another_authorization_id_is_refused():
    """CVE-2017-12610."""
    for message in (b"n,a=bob,n=alice,r=x", b"n,a=alice=2C,n=alice,r=x"):
        with pytest.raises(SaslFailure) as failed:
            scram_pair()[0].respond(message)
        assert failed.value.public
    assert scram_pair()[0].respond(b"n,a=alice,n=alice,r=x")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"y,,n=alice,r=x",
        b"p=tls-unique,,n=alice,r=x",
        b"n,,n=alice",
        b"n,,n=,r=x",
        b"n,,n=a=b,r=x",
        b"n,,n=alice,r=",
        b"n,,n=alice,r=\xe4",
        b"n,,m=ext,n=alice,r=x",
        b"n,,n=alice,r=x,tokenauth=true",
        b"n,,n=alice,r=" + b"x" * 8192,
        b"\xff",
    ],
)
def test_scram_refuses_a_first_message(message):
    with pytest.raises(SaslFailure):
        scram_pair()[0].respond(message)


def test_a_last_message_with_many_extensions_is_read_at_once():
    """A pattern with two stars would take years, for as few bytes as these."""
    flood = b"," + b",".join([b"=" * 40] * 180)
    began = time.monotonic()
    with pytest.raises(SaslFailure):
        after_first(lambda message: message.replace(b",p=", flood + b",q="))
    assert time.monotonic() - began < 1


@settings(max_examples=30)
@given(st.binary(), st.binary())
def test_scram_meets_any_messages(first, second):
    server = scram_pair()[0]
    try:
        server.respond(first)
        server.respond(second)
    except SaslFailure:
        pass
    assert not server.complete


@settings(max_examples=30)
@given(st.data())
def test_one_changed_byte_of_the_proof_is_refused(data):
    server, client = scram_pair()
    message = client.respond(server.respond(client.first()))
    proof = bytearray(b64decode(message.rpartition(b",p=")[2]))
    proof[data.draw(st.integers(0, len(proof) - 1))] ^= data.draw(st.integers(1, 255))
    head = message.rpartition(b",p=")[0]
    with pytest.raises(SaslFailure):
        server.respond(head + b",p=" + b64encode(proof))


@pytest.mark.parametrize("iterations", [0, 1, MIN_ITERATIONS - 1, MAX_ITERATIONS + 1, 10**9])
def test_our_side_computes_only_so_many_iterations(iterations):
    """CVE-2026-10143, and a broker that wants what is guessed easily."""
    client = ScramClient(SHA_256, "alice", "secret", "abc")
    client.first()
    with pytest.raises(SaslFailure):
        client.respond(b"r=abcdef,s=c2FsdA==,i=%d" % iterations)


@pytest.mark.parametrize(
    "answer", [b"r=abc,s=c2FsdA==,i=4096", b"r=xabcdef,s=c2FsdA==,i=4096", b"s=,r=,i=", b"\xff"]
)
def test_our_side_wants_its_nonce_continued(answer):
    client = ScramClient(SHA_256, "alice", "secret", "abc")
    with pytest.raises(SaslFailure):
        client.respond(answer)


def test_our_side_wants_a_proof_of_the_broker():
    for last in (b"v=" + b64encode(bytes(32)), b"e=other-error", b"", b"v="):
        server, client = scram_pair()
        server.respond(client.respond(server.respond(client.first())))
        with pytest.raises(SaslFailure):
            client.respond(last)
        assert not client.complete


def test_a_credential_shows_no_key():
    assert "stored" not in repr(STORED[SHA_256])
    text = repr(ScramCredential(b"salt", b"stored", b"server", 4096))
    assert "s" in text and "stored" not in text and "server" not in text


def test_the_salted_password_is_pbkdf2():
    assert salted_password(SHA_512, "x", b"y", 4096) == hashlib.pbkdf2_hmac(
        "sha512", b"x", b"y", 4096
    )
    assert scram.MECHANISMS["SCRAM-SHA-512"].code == 2


# JAAS


def test_a_line_of_kafkas_documentation():
    found = jaas.parse_jaas(
        f"{jaas.PLAIN} required\n"
        """  username="admin"   password='admin "secret"' user_admin="a\\"b;=" user_alice=plain ;"""
    )
    assert found.module == jaas.PLAIN
    assert found.options["username"] == "admin"
    assert found.options["password"] == 'admin "secret"'
    assert found.users == {"admin": 'a"b;=', "alice": "plain"}
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "com.sun.security.auth.module.JndiLoginModule required user.provider.url=ldap;",
        "com.sun.security.auth.module.LdapLoginModule required;",
        "org.apache.kafka.common.security.plain.PlainLoginModule",
        'org.apache.kafka.common.security.plain.PlainLoginModule required a="b"',
        'org.apache.kafka.common.security.plain.PlainLoginModule required a="secret;',
        "org.apache.kafka.common.security.plain.PlainLoginModule required a=;",
        "org.apache.kafka.common.security.plain.PlainLoginModule required =b;",
        "org.apache.kafka.common.security.plain.PlainLoginModule required a=secret a=secret;",
        "org.apache.kafka.common.security.plain.PlainLoginModule required; "
        "com.sun.security.auth.module.JndiLoginModule required;",
    ],
)
def test_other_lines_are_refused_without_their_values(line):
    with pytest.raises(jaas.JaasError) as refused:
        jaas.parse_jaas(line)
    assert "secret" not in str(refused.value)


@settings(max_examples=30)
@given(st.text())
def test_any_line_is_read_or_refused(line):
    with contextlib.suppress(jaas.JaasError):
        assert jaas.parse_jaas(line).module in jaas.MODULES


@settings(max_examples=30)
@given(st.dictionaries(st.from_regex(r"[a-z.]+\Z", fullmatch=True), NAMES, max_size=3))
def test_quoted_options_come_back(options):
    quoted = " ".join(
        '{}="{}"'.format(name, value.replace("\\", "\\\\").replace('"', '\\"'))
        for name, value in options.items()
    )
    if "\n" not in quoted:
        assert jaas.parse_jaas(f"{jaas.SCRAM} required {quoted};").options == options
