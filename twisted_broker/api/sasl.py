"""SASL's APIs: authentication of a connection; what a broker tells of SCRAM users.

1. On a listener without SASL (there with one line), and on a connection that is authenticated and
   may not authenticate again, both requests are answered with ILLEGAL_SASL_STATE.
2. A failure is answered late, and the connection ends with it. The client is not told what was
   wrong, beyond what it said itself.

Source: Kafka's `SaslServerAuthenticator`, `KafkaApis`, `ScramImage`; KIP-43, KIP-152, KIP-368,
KIP-554. Not here: who may ask when (`net/sasl_gate.py`), changes of users
(`cluster/scram_changes.py`).
"""

from __future__ import annotations

from twisted_broker.api import audit
from twisted_broker.api.context import RequestContext
from twisted_broker.cluster import scram_changes
from twisted_broker.net.sasl_gate import SaslGate
from twisted_broker.security.acl import Operation
from twisted_broker.security.sasl.authenticator import State
from twisted_broker.security.sasl.errors import SaslFailure
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import sasl


async def sasl_handshake(
    context: RequestContext, request: sasl.SaslHandshakeRequest
) -> sasl.SaslHandshakeResponse:
    gate = _gate(context)
    if gate is None:
        audit.sasl_refused(context)
    if gate is None or gate.refuses_again():
        return sasl.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    response = sasl.SaslHandshakeResponse(mechanisms=list(gate.authenticator.enabled))
    try:
        gate.handshake(request.mechanism, context.version)
    except SaslFailure as failure:
        response.error_code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
        await gate.failed(failure)
    return response


async def sasl_authenticate(
    context: RequestContext, request: sasl.SaslAuthenticateRequest
) -> sasl.SaslAuthenticateResponse:
    gate = _gate(context)
    if gate is None or gate.authenticator.state is State.AUTHENTICATED:
        return sasl.SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="SaslAuthenticate comes after SaslHandshake",
        )
    try:
        step = gate.step(bytes(request.auth_bytes))
    except SaslFailure as failure:
        await gate.failed(failure)
        general = f"Authentication failed: wrong credentials of {gate.authenticator.mechanism}"
        return sasl.SaslAuthenticateResponse(
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
            error_message=failure.public or general,
        )
    return sasl.SaslAuthenticateResponse(
        error_message=None, auth_bytes=step.token, session_lifetime_ms=step.lifetime_ms
    )


def _gate(context: RequestContext) -> SaslGate | None:
    return None if context.connection is None else context.connection.sasl


async def describe_user_scram_credentials(
    context: RequestContext, request: sasl.DescribeUserScramCredentialsRequest
) -> sasl.DescribeUserScramCredentialsResponse:
    if not context.may_on_cluster(Operation.DESCRIBE):
        raise BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    names = None if request.users is None else [each.name for each in request.users]
    return sasl.DescribeUserScramCredentialsResponse(
        error_message="", results=scram_changes.describe(context.metadata.image, names)
    )
