"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, 7677): both sides, and what is stored of a user.

1. The server stores no password: a salt, the number of iterations, and two keys.
2. The nonce of the client's last message is compared with that of this exchange (CVE-2024-56128),
   and so is its header; the authorization id is empty or the name itself (CVE-2017-12610).
3. Proofs and signatures are compared in constant time.
4. Iterations are from `MIN_ITERATIONS` to `MAX_ITERATIONS`, on both sides: a peer cannot make us
   compute for long, nor make us send what is guessed easily.
5. A user is a name without normalisation (SASLprep), as in Kafka.
6. Who names a delegation token (extension `tokenauth=true`) is its owner, as long as it holds.

Source: RFC 5802; Kafka's `ScramSaslServer`, `ScramSaslClient`, `ScramFormatter`, `ScramMechanism`;
KIP-48. Not here: where credentials are stored (`cluster/scram_changes.py`), what a token's are
(`tokens.py` of this package), channel binding.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable
from typing import NamedTuple

from twisted_broker.security.sasl.errors import SaslFailure

MIN_ITERATIONS, MAX_ITERATIONS = 4096, 16384
MOST_BYTES = 8192
"""In a message: what a connection that is not authenticated has stored here."""
NONCE_BYTES = 20
"""What a server nonce, a client nonce or a salt is made of."""
_EXTENSION = "tokenauth=true"
_NAME = re.compile(r"(?:[^=,\0]|=2C|=3D)+\Z")
_NONCE = re.compile(r"[\x21-\x2b\x2d-\x7e]+\Z")
_FIRST = re.compile(
    r"(?P<header>n,(?:a=(?P<authzid>[^,]*))?,)n=(?P<name>[^,]*),r=(?P<nonce>[^,]*)"
    r"(?:,(?P<extensions>.*))?\Z",
    re.DOTALL,
)
_SERVER_FIRST = re.compile(
    r"r=(?P<nonce>[^,]*),s=(?P<salt>[^,]*),i=(?P<iterations>[0-9]{1,9})(?:,.*)?\Z", re.DOTALL
)


class ScramMechanism(NamedTuple):
    """`code` is Kafka's, in records and APIs."""

    name: str
    code: int
    hash_name: str
    key_bytes: int


SHA_256 = ScramMechanism("SCRAM-SHA-256", 1, "sha256", 32)
SHA_512 = ScramMechanism("SCRAM-SHA-512", 2, "sha512", 64)
MECHANISMS = {each.name: each for each in (SHA_256, SHA_512)}
BY_CODE = {each.code: each for each in (SHA_256, SHA_512)}


class ScramCredential(NamedTuple):
    """What is stored of a user. Its `repr` shows no key."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"


class TokenLogin(NamedTuple):
    """What a delegation token gives who knows its HMAC. `owner`: the name of a user."""

    credential: ScramCredential
    owner: str
    expires_wall_ms: int


def salted_password(
    mechanism: ScramMechanism, password: str, salt: bytes, iterations: int
) -> bytes:
    """RFC 5802's SaltedPassword: some 10 ms of the processor for 16,384 iterations."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def credential_of(
    mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    """What to store of a user with this salted password."""
    client_key = _mac(mechanism, salted, b"Client Key")
    return ScramCredential(
        salt,
        _digest(mechanism, client_key),
        _mac(mechanism, salted, b"Server Key"),
        iterations,
    )


def _mac(mechanism: ScramMechanism, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, mechanism.hash_name)


def _digest(mechanism: ScramMechanism, data: bytes) -> bytes:
    return hashlib.new(mechanism.hash_name, data).digest()


def _names_token(extensions: str | None) -> bool:
    """Whether the first message's extensions say that it names a delegation token."""
    return _EXTENSION in (extensions or "").split(",")


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def _text(token: bytes) -> str:
    if len(token) > MOST_BYTES:
        raise SaslFailure(f"a message of {len(token)} bytes, more than {MOST_BYTES}")
    try:
        return str(token, "utf-8")
    except UnicodeDecodeError:
        raise SaslFailure("the message is not UTF-8") from None


def _base64(text: str, what: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (Base64Error, ValueError):
        raise SaslFailure(f"the {what} is not base64") from None


def encode_name(name: str) -> str:
    """RFC 5802's saslname."""
    return name.replace("=", "=3D").replace(",", "=2C")


def decode_name(text: str) -> str:
    """Raises SaslFailure."""
    if not _NAME.match(text):
        raise SaslFailure("the user name is empty or malformed")
    return text.replace("=2C", ",").replace("=3D", "=")


class ScramServer:
    """One authentication.

    `lookup(name)` gives a user's credential or None; `nonce` is random text; `token(token_id)` a
    delegation token that holds now, or None.
    """

    refused = ""

    def __init__(
        self,
        mechanism: ScramMechanism,
        lookup: Callable[[str], ScramCredential | None],
        nonce: str,
        token: Callable[[str], TokenLogin | None] = lambda token_id: None,
    ) -> None:
        self.name = mechanism.name
        self._mechanism, self._lookup, self._token = mechanism, lookup, token
        self._nonce = nonce
        self._credential: ScramCredential | None = None
        self._user = self._header = self._first_messages = self._owner = ""
        self.complete = self.token_authenticated = False
        self.expires_wall_ms: int | None = None
        self.authorization_id = ""

    def respond(self, token: bytes) -> bytes:
        """Raises SaslFailure."""
        if self.complete:
            raise SaslFailure("a message after the last one")
        text = _text(token)
        return self._second(text) if self._credential is not None else self._first(text)

    def _first(self, text: str) -> bytes:
        match = _FIRST.match(text)
        if match is None:
            if text[:1] in ("p", "y"):
                raise SaslFailure("the client wants channel binding, which is not offered")
            raise SaslFailure("the first message is malformed")
        nonce, name = match["nonce"], decode_name(match["name"])
        if not _NONCE.match(nonce):
            raise SaslFailure("the nonce is empty or malformed")
        authorization_id = match["authzid"]
        if authorization_id and decode_name(authorization_id) != name:
            raise SaslFailure(
                f"user {name!r} wants to act for {authorization_id!r}",
                "Authentication failed: the authorization id is not the user name",
            )
        self.token_authenticated = _names_token(match["extensions"])
        found = self._token_credential(name) if self.token_authenticated else self._lookup(name)
        if found is None:
            hint = ""
            if self._token(name) is not None:
                hint = "; it is the id of a delegation token: the client must set tokenauth=true"
            raise SaslFailure(f"user {name!r}: there is no {self.name} credential{hint}")
        if found.iterations < MIN_ITERATIONS:
            raise SaslFailure(
                f"user {name!r}: the stored credential has {found.iterations} iterations, fewer "
                f"than {MIN_ITERATIONS}; set it again"
            )
        self._user, self._header, self._credential = name, match["header"], found
        self._nonce = nonce + self._nonce
        answer = f"r={self._nonce},s={b64encode(found.salt).decode()},i={found.iterations}"
        self._first_messages = f"{text[len(self._header) :]},{answer}"
        return answer.encode()

    def _token_credential(self, token_id: str) -> ScramCredential:
        found = self._token(token_id)
        if found is None:
            raise SaslFailure(
                f"delegation token {token_id!r}: there is none that holds, or this node has no "
                "delegation.token.secret.key"
            )
        self._owner, self.expires_wall_ms = found.owner, found.expires_wall_ms
        return found.credential

    def _second(self, text: str) -> bytes:
        credential, mechanism = self._credential, self._mechanism
        assert credential is not None
        without_proof, _, last = text.rpartition(",")
        # Split, not matched: extensions may stand before the proof, as many as the client likes.
        header, nonce, *_ = (*without_proof.split(",", 2), "", "")
        if header[:2] != "c=" or nonce[:2] != "r=" or last[:2] != "p=":
            raise SaslFailure("the last message is malformed")
        if _base64(header[2:], "header") != self._header.encode():
            raise SaslFailure("the header of the last message is not that of the first")
        if not hmac.compare_digest(nonce[2:].encode(), self._nonce.encode()):
            doubled = nonce[2:].removesuffix(self._nonce)
            if doubled != nonce[2:] and doubled and self._nonce.startswith(doubled):
                raise SaslFailure(
                    "the nonce of the last message is not that of this exchange: librdkafka before "
                    "2.6.1 sends its own twice, update the client"
                )
            raise SaslFailure("the nonce of the last message is not that of this exchange")
        proof = _base64(last[2:], "proof")
        if len(proof) != mechanism.key_bytes:
            raise SaslFailure("the proof has the wrong length")
        signed = f"{self._first_messages},{without_proof}".encode()
        client_key = _xor(proof, _mac(mechanism, credential.stored_key, signed))
        if not hmac.compare_digest(_digest(mechanism, client_key), credential.stored_key):
            what, secret = (
                ("delegation token", "HMAC") if self.token_authenticated else ("user", "password")
            )
            raise SaslFailure(f"{what} {self._user!r}: the {secret} is wrong")
        self.complete = True
        self.authorization_id = self._owner if self.token_authenticated else self._user
        return b"v=" + b64encode(_mac(mechanism, credential.server_key, signed))


class ScramClient:
    """Our side. `nonce` is random text; `token_authenticated`: the user is the id of a delegation
    token, the password its HMAC in base64.
    """

    def __init__(
        self,
        mechanism: ScramMechanism,
        user: str,
        password: str,
        nonce: str,
        token_authenticated: bool = False,
    ) -> None:
        self.name = mechanism.name
        self._mechanism, self._password, self._nonce = mechanism, password, nonce
        self._first = f"n={encode_name(user)},r={nonce}" + (
            f",{_EXTENSION}" if token_authenticated else ""
        )
        self._signature: bytes | None = None
        self.complete = False

    def first(self) -> bytes:
        """The first message."""
        return f"n,,{self._first}".encode()

    def respond(self, token: bytes) -> bytes | None:
        """The next message; None when there is nothing more to send. Raises SaslFailure."""
        text = _text(token)
        if self.complete:
            raise SaslFailure("the broker sent a message after the last one")
        if self._signature is None:
            return self._prove(text)
        if text.startswith("e="):
            raise SaslFailure("the broker refused the proof")
        given = _base64(text[2:].partition(",")[0], "signature") if text[:2] == "v=" else b""
        if not hmac.compare_digest(given, self._signature):
            raise SaslFailure("the broker did not prove that it knows the user's key")
        self.complete = True
        return None

    def _prove(self, text: str) -> bytes:
        match, mechanism = _SERVER_FIRST.match(text), self._mechanism
        if match is None:
            raise SaslFailure("the broker's first message is malformed")
        nonce, iterations = match["nonce"], int(match["iterations"])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise SaslFailure("the broker's nonce does not continue ours")
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise SaslFailure(
                f"the broker wants {iterations} iterations; from {MIN_ITERATIONS} to "
                f"{MAX_ITERATIONS} are accepted"
            )
        salt = _base64(match["salt"], "salt")
        salted = salted_password(mechanism, self._password, salt, iterations)
        without_proof = f"c=biws,r={nonce}"
        signed = f"{self._first},{text},{without_proof}".encode()
        client_key = _mac(mechanism, salted, b"Client Key")
        proof = _xor(client_key, _mac(mechanism, _digest(mechanism, client_key), signed))
        self._signature = _mac(mechanism, _mac(mechanism, salted, b"Server Key"), signed)
        return f"{without_proof},p={b64encode(proof).decode()}".encode()
