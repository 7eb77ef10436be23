"""Our side of an authentication: frames out, frames in.

Owns `ClientAuthenticator`, for one connection to another node.

1. SaslHandshake 1, then SaslAuthenticate 2: the nodes that we call are of Kafka 3.7 or later.
2. The authentication is over when the mechanism says so, and the broker: a broker that agrees to
   everything but proves nothing is refused (SCRAM).

Source: Kafka's `SaslClientAuthenticator`. Not here: the connection (`net/sasl_connector.py`), whose
credentials (`settings.py` of this package).
"""

from __future__ import annotations

from typing import Protocol

from twisted_broker.security.sasl.errors import SaslFailure
from twisted_broker.wire.errors import ErrorCode, WireError, error_of
from twisted_broker.wire.header import RequestHeader, decode_response_header, encode_request_header
from twisted_broker.wire.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from twisted_broker.wire.schema import decode, encode

_HANDSHAKE_VERSION, _AUTHENTICATE_VERSION = 1, 2


class ClientMechanism(Protocol):
    """One authentication by one mechanism, our side."""

    @property
    def name(self) -> str: ...

    @property
    def complete(self) -> bool: ...

    def first(self) -> bytes:
        """The first message."""
        ...

    def respond(self, token: bytes) -> bytes | None:
        """The next message; None when there is nothing more to send. Raises SaslFailure."""
        ...


class ClientAuthenticator:
    """`complete`, and the session's length in ms (0 without an end), hold after the last answer."""

    def __init__(self, mechanism: ClientMechanism, client_id: str | None) -> None:
        self._mechanism, self._client_id = mechanism, client_id
        self._correlation_id = 0
        self._is_handshake = True
        self.complete = False
        self.lifetime_ms = 0

    @property
    def mechanism(self) -> str:
        return self._mechanism.name

    def begin(self) -> bytes:
        """The first frame, with its length."""
        return self._frame(SaslHandshakeRequest(mechanism=self._mechanism.name), _HANDSHAKE_VERSION)

    def received(self, frame: bytes | memoryview) -> bytes | None:
        """The next frame; None when it is complete. Raises SaslFailure, WireError."""
        if self._is_handshake:
            return self._handshake(frame)
        answer = self._decode(SaslAuthenticateResponse, frame, 36, _AUTHENTICATE_VERSION)
        if answer.error_code:
            raise SaslFailure(answer.error_message or error_of(answer.error_code).sentence)
        token = self._mechanism.respond(bytes(answer.auth_bytes))
        if token is not None:
            return self._authenticate(token)
        if not self._mechanism.complete:
            raise SaslFailure("the broker ended the authentication too early")
        self.complete, self.lifetime_ms = True, answer.session_lifetime_ms
        return None

    def _handshake(self, frame: bytes | memoryview) -> bytes:
        answer = self._decode(SaslHandshakeResponse, frame, 17, _HANDSHAKE_VERSION)
        if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            raise SaslFailure(
                f"the broker does not offer {self._mechanism.name}, but "
                f"{', '.join(answer.mechanisms) or 'nothing'}: the mechanism set here must be in "
                "its sasl.enabled.mechanisms",
                code=ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            )
        if answer.error_code:
            code = error_of(answer.error_code)
            raise SaslFailure(code.sentence, code=code)
        self._is_handshake = False
        return self._authenticate(self._mechanism.first())

    def _authenticate(self, token: bytes) -> bytes:
        return self._frame(SaslAuthenticateRequest(auth_bytes=token), _AUTHENTICATE_VERSION)

    def _frame(
        self, request: SaslHandshakeRequest | SaslAuthenticateRequest, version: int
    ) -> bytes:
        self._correlation_id += 1
        header = RequestHeader(request.api_key, version, self._correlation_id, self._client_id)
        data = encode_request_header(header) + encode(request, version)
        return len(data).to_bytes(4, "big") + data

    def _decode(self, cls: type, frame: bytes | memoryview, api_key: int, version: int):  # type: ignore[no-untyped-def]
        correlation_id, offset = decode_response_header(frame, api_key, version)
        if correlation_id != self._correlation_id:
            raise WireError("an answer out of order")
        return decode(cls, frame, version, offset)
