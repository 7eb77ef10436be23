"""A blocking connection to one broker: requests out, answers in the same order.

1. Every call ends: an answer that takes longer than `timeout_seconds` is a `TimeoutError`, a
   connection that breaks a `ConnectionError`; both are `OSError`.
2. Several requests may be on their way; answers are taken in order.
3. Versions are fixed: those that brokers since Kafka 2.8 (topic ids) and ours serve.
4. TLS and SASL come first, by the properties of the client; a refusal there is a PipelineError.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import TypeVar

from replog_pipeline.errors import PipelineError
from replog_pipeline.kafka_cluster import PLAINTEXT, ClientConfig
from replog_pipeline.replay import bearer_token, secured_socket
from twisted_broker.wire.header import RequestHeader, decode_response_header, encode_request_header
from twisted_broker.wire.messages.fetch import FetchRequest
from twisted_broker.wire.messages.list_offsets import ListOffsetsRequest
from twisted_broker.wire.messages.metadata import MetadataRequest
from twisted_broker.wire.messages.produce import ProduceRequest
from twisted_broker.wire.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from twisted_broker.wire.schema import Request, Response, decode, encode

TIMEOUT_SECONDS = 40.0  # above the 30 s that a Produce may wait for replicas
VERSIONS: dict[type[Request], int] = {
    ProduceRequest: 7,
    FetchRequest: 11,
    ListOffsetsRequest: 5,
    MetadataRequest: 10,
    SaslHandshakeRequest: 1,
    SaslAuthenticateRequest: 2,
}
LARGEST_ANSWER = 128 << 20
R = TypeVar("R", bound=Response)


class Connection:
    """To `host` and `port`; opened at once."""

    def __init__(
        self,
        host: str,
        port: int,
        client: ClientConfig = PLAINTEXT,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        mechanism = secured_socket.mechanism(client)
        self._socket = secured_socket.opened(host, port, client, timeout_seconds)
        self._correlation = 0
        self._waiting: deque[tuple[int, int, int]] = deque()
        if mechanism is not None:
            try:
                self._authenticate(mechanism)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        self._socket.close()

    def send(self, request: Request) -> None:
        """Without waiting for the answer."""
        version = VERSIONS[type(request)]
        self._correlation += 1
        frame = encode_request_header(
            RequestHeader(request.api_key, version, self._correlation, "replog-replay")
        ) + encode(request, version)
        self._waiting.append((self._correlation, request.api_key, version))
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self, kind: type[R]) -> R:
        """The answer to the oldest request that has none."""
        (size,) = struct.unpack(">i", self._exactly(4))
        if not 4 <= size <= LARGEST_ANSWER:
            raise ConnectionError(f"an answer of {size} bytes: this is no Kafka broker")
        frame = self._exactly(size)
        expected, api_key, version = self._waiting.popleft()
        correlation, start = decode_response_header(frame, api_key, version)
        if correlation != expected:
            raise ConnectionError(f"answer {correlation} instead of {expected}")
        return decode(kind, frame, version, start)

    def call(self, request: Request, kind: type[R]) -> R:
        """Nothing else may be on its way."""
        self.send(request)
        return self.receive(kind)

    def _authenticate(self, mechanism: secured_socket.Mechanism) -> None:
        answer = self.call(SaslHandshakeRequest(mechanism=mechanism.name), SaslHandshakeResponse)
        if answer.error_code:
            raise PipelineError(
                f"sasl.mechanism: the broker has no {mechanism.name}; it has "
                f"{', '.join(answer.mechanisms) or 'none'}"
            )

        setting = (
            bearer_token.URL if mechanism.name == bearer_token.MECHANISM else "sasl.jaas.config"
        )

        def send(token: bytes) -> bytes:
            answer = self.call(SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse)
            if answer.error_code:
                raise PipelineError(
                    f"SASL authentication failed: {answer.error_message or answer.error_code}: see "
                    f"{setting}"
                )
            return bytes(answer.auth_bytes)

        secured_socket.authenticate(mechanism, send)

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = self._socket.recv(min(size - len(data), 1 << 20))
            if not more:
                raise ConnectionError("closed by the broker")
            data += more
        return bytes(data)
