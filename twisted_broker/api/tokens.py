"""CreateDelegationToken (38), RenewDelegationToken (39), ExpireDelegationToken (40),
DescribeDelegationToken (41), on a broker; what the controller checks of the first three.

1. Tokens are for clients that proved who they are, and not by a token; others get
   DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: on PLAINTEXT, and on SSL without a client's certificate.
   For a request in an Envelope the broker has checked the protocol.
2. A principal has tokens for itself without a permission; for another it needs CREATE_TOKENS on
   that user.
3. Owner, requester and renewers see a token; others need DESCRIBE on it, or DESCRIBE_TOKENS on its
   owner. Who sees a token sees its HMAC, as in Kafka.
4. No error and no line of the log holds an HMAC.

Source: Kafka's `KafkaApis`, `ControllerApis`; KIP-48, KIP-373. Not here: decisions
(`cluster/token_changes.py`), changes (`api/controller.py`).
"""

from __future__ import annotations

from twisted_broker.api.context import RequestContext
from twisted_broker.cluster import token_changes
from twisted_broker.security.acl import Operation, ResourceType
from twisted_broker.security.principal import ANONYMOUS, Principal, parse_principal
from twisted_broker.security.sasl.tokens import TokenSecret
from twisted_broker.security.security_protocol import SecurityProtocol
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import tokens
from twisted_broker.wire.messages.metadata_records import DelegationTokenRecord

NO_TIME = -1
NOT_ALLOWED = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


def may_request(context: RequestContext) -> bool:
    """Whether this connection may request anything about tokens."""
    if context.principal.token_authenticated:
        return False
    if context.is_forwarded:
        return True
    protocol = context.listener.protocol
    if protocol is SecurityProtocol.SSL:
        return context.principal != ANONYMOUS
    return protocol is not SecurityProtocol.PLAINTEXT


def owner_of(context: RequestContext, request: tokens.CreateDelegationTokenRequest) -> Principal:
    """Whose token is requested: by default the requester's own."""
    if not request.owner_principal_name:
        return context.principal
    return Principal(request.owner_principal_type or "", request.owner_principal_name)


def creation_refused(context: RequestContext, owner: Principal) -> ErrorCode:
    """NONE when this client may have a token for this owner."""
    if not may_request(context):
        return NOT_ALLOWED
    if owner != context.principal and not context.may(
        Operation.CREATE_TOKENS, ResourceType.USER, str(owner)
    ):
        return ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    return ErrorCode.NONE


def not_created(
    context: RequestContext, owner: Principal, code: ErrorCode, timestamp: int = NO_TIME
) -> tokens.CreateDelegationTokenResponse:
    """The answer that refuses a token."""
    return tokens.CreateDelegationTokenResponse(
        error_code=code,
        principal_type=owner.kind,
        principal_name=owner.name,
        token_requester_principal_type=context.principal.kind,
        token_requester_principal_name=context.principal.name,
        issue_timestamp_ms=timestamp,
        expiry_timestamp_ms=timestamp,
        max_timestamp_ms=timestamp,
    )


async def create_delegation_token(
    context: RequestContext, request: tokens.CreateDelegationTokenRequest
) -> tokens.CreateDelegationTokenResponse:
    """The controller creates it."""
    owner = owner_of(context, request)
    code = creation_refused(context, owner)
    if not code:
        try:
            token_changes.check_principals(request, owner)
        except BrokerError as error:
            code = error.code
    if code:
        return not_created(context, owner, code)
    response: tokens.CreateDelegationTokenResponse = await context.forwarding.forward(
        context, tokens.CreateDelegationTokenResponse
    )
    return response


async def renew_delegation_token(
    context: RequestContext, request: tokens.RenewDelegationTokenRequest
) -> tokens.RenewDelegationTokenResponse:
    """The controller renews it."""
    if not may_request(context):
        return tokens.RenewDelegationTokenResponse(
            error_code=NOT_ALLOWED, expiry_timestamp_ms=NO_TIME
        )
    response: tokens.RenewDelegationTokenResponse = await context.forwarding.forward(
        context, tokens.RenewDelegationTokenResponse
    )
    return response


async def expire_delegation_token(
    context: RequestContext, request: tokens.ExpireDelegationTokenRequest
) -> tokens.ExpireDelegationTokenResponse:
    """The controller has it expire."""
    if not may_request(context):
        return tokens.ExpireDelegationTokenResponse(
            error_code=NOT_ALLOWED, expiry_timestamp_ms=NO_TIME
        )
    response: tokens.ExpireDelegationTokenResponse = await context.forwarding.forward(
        context, tokens.ExpireDelegationTokenResponse
    )
    return response


async def describe_delegation_token(
    context: RequestContext, request: tokens.DescribeDelegationTokenRequest
) -> tokens.DescribeDelegationTokenResponse:
    """What this broker knows of them."""
    response = tokens.DescribeDelegationTokenResponse()
    secret = context.broker.tokens.secret
    if not may_request(context):
        response.error_code = NOT_ALLOWED
    elif secret is None:
        response.error_code = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    elif request.owners is None or request.owners:
        owners = None
        if request.owners is not None:
            owners = {
                Principal(each.principal_type, each.principal_name)
                async for each in context.each(request.owners)
            }
        async for token in context.each(context.metadata.image.tokens.values(), 4):
            if _shows(context, token, owners):
                response.tokens.append(_described(secret, token))
    return response


def _shows(
    context: RequestContext, token: DelegationTokenRecord, owners: set[Principal] | None
) -> bool:
    own = token_changes.principals_of(token)
    if owners is not None and owners.isdisjoint(own):
        return False
    return (
        context.principal in own
        or context.may(
            Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id, noted=False
        )
        or context.may(Operation.DESCRIBE_TOKENS, ResourceType.USER, token.owner, noted=False)
    )


def _described(
    secret: TokenSecret, token: DelegationTokenRecord
) -> tokens.DescribedDelegationToken:
    owner, requester = parse_principal(token.owner), parse_principal(token.requester)
    renewers = [parse_principal(each) for each in token.renewers]
    return tokens.DescribedDelegationToken(
        principal_type=owner.kind,
        principal_name=owner.name,
        token_requester_principal_type=requester.kind,
        token_requester_principal_name=requester.name,
        issue_timestamp=token.issue_timestamp,
        expiry_timestamp=token.expiration_timestamp,
        max_timestamp=token.max_timestamp,
        token_id=token.token_id,
        hmac=secret.hmac_of(token.token_id),
        renewers=[
            tokens.DescribedRenewer(principal_type=each.kind, principal_name=each.name)
            for each in renewers
        ],
    )
