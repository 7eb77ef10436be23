"""Delegation tokens in the metadata log: what the controller decides about them, and who may log in
by one.

1. A record holds no secret: a token's HMAC is derived from its id (`security/sasl/tokens.py`).
2. A token is valid until its expiry or the end of its longest lifetime, whichever is first. From
   then on nobody logs in by it, though its record is removed later.
3. One principal can have requested `MOST_OF_ONE` tokens at most; owner and renewers of one token
   have `MOST_BYTES` bytes at most. So a client that may log in cannot fill the metadata.
4. The owner is of type User, as a login by the token makes a user of that name.

Source: Kafka's `DelegationTokenControlManager`, `DelegationTokenManager`; KIP-48, KIP-373, KIP-900.
Not here: who may request what (`api/tokens.py`), the login (`security/sasl/scram.py`).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import NamedTuple

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.security.principal import Principal, parse_principal
from twisted_broker.security.sasl.scram import ScramMechanism, TokenLogin
from twisted_broker.security.sasl.tokens import TokenSecret
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.metadata_records import (
    DelegationTokenRecord,
    RemoveDelegationTokenRecord,
)
from twisted_broker.wire.messages.tokens import CreateDelegationTokenRequest
from twisted_broker.wire.schema import Record

TOKEN_LEVEL = 14  # metadata.version 3.6-IV2
MOST_OF_ONE = 10_000
MOST_BYTES = 8192
_SETTING = "delegation.token.secret.key"
USER = "User"
_LAST_MS = 2**63 - 1
_TOKENS_PER_STEP = 1000


class TokenSettings(NamedTuple):
    """`secret` None: there are no tokens. `expiry_ms`: until a token must be renewed."""

    secret: TokenSecret | None
    max_lifetime_ms: int
    expiry_ms: int


class TokenDecision(NamedTuple):
    """`token`: the one that was created or changed, as it is now; `is_removed`: it is not there
    any more.
    """

    records: list[Record]
    token: DelegationTokenRecord
    is_removed: bool = False


def token_settings(config: BrokerConfig) -> TokenSettings:
    """Of a node."""
    secret = config.text(_SETTING)
    return TokenSettings(
        TokenSecret(secret) if secret else None,
        config.integer("delegation.token.max.lifetime.ms"),
        config.integer("delegation.token.expiry.time.ms"),
    )


def secret_of(settings: TokenSettings, image: MetadataImage) -> TokenSecret:
    """Raises BrokerError where there can be no tokens."""
    if settings.secret is None:
        raise BrokerError(
            ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, f"{_SETTING} is not set on the controller"
        )
    if image.metadata_version < TOKEN_LEVEL:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"delegation tokens need metadata.version {TOKEN_LEVEL} or above",
        )
    return settings.secret


def is_over(token: DelegationTokenRecord, wall_ms: int) -> bool:
    """Whether it is no longer valid."""
    return min(token.max_timestamp, token.expiration_timestamp) < wall_ms


def principals_of(token: DelegationTokenRecord) -> set[Principal]:
    """Owner, requester and renewers: who may describe it, whatever the ACLs say."""
    return {parse_principal(each) for each in (token.owner, token.requester, *token.renewers)}


def login_of(
    image: MetadataImage,
    secret: TokenSecret,
    mechanism: ScramMechanism,
    token_id: str,
    wall_ms: int,
) -> TokenLogin | None:
    """The login of a client that knows the token's HMAC; None without a valid token of this id."""
    token = image.tokens.get(token_id)
    if token is None or is_over(token, wall_ms):
        return None
    owner = parse_principal(token.owner)
    # An owner of another type (some controllers allow it) would log in as the user of that name.
    if owner.kind != USER:
        return None
    credential = secret.credential(mechanism, token_id)
    return TokenLogin(credential, owner.name, min(token.max_timestamp, token.expiration_timestamp))


def create(
    image: MetadataImage,
    settings: TokenSettings,
    request: CreateDelegationTokenRequest,
    requester: Principal,
    owner: Principal,
    token_id: str,
    wall_ms: int,
) -> TokenDecision:
    """A new token. Raises BrokerError."""
    secret_of(settings, image)
    check_principals(request, owner)
    check_number(image.tokens, requester)
    longest = settings.max_lifetime_ms
    if request.max_lifetime_ms > 0:
        longest = min(longest, request.max_lifetime_ms)
    last_ms = min(wall_ms + longest, _LAST_MS)
    token = DelegationTokenRecord(
        owner=str(owner),
        requester=str(requester),
        renewers=[f"{each.principal_type}:{each.principal_name}" for each in request.renewers],
        issue_timestamp=wall_ms,
        max_timestamp=last_ms,
        expiration_timestamp=min(wall_ms + settings.expiry_ms, last_ms),
        token_id=token_id,
    )
    return TokenDecision([token], token)


def check_principals(request: CreateDelegationTokenRequest, owner: Principal) -> None:
    """Raises BrokerError."""
    types = {owner.kind, *(each.principal_type for each in request.renewers)}
    if types != {USER}:
        raise BrokerError(
            ErrorCode.INVALID_PRINCIPAL_TYPE, "owner and renewers are of type User only"
        )
    names = (owner.name, *(each.principal_name for each in request.renewers))
    if sum(len(each.encode()) + len(USER) + 1 for each in names) > MOST_BYTES:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST,
            f"owner and renewers of a token are at most {MOST_BYTES} bytes together",
        )


def check_number(tokens: Mapping[str, DelegationTokenRecord], requester: Principal) -> None:
    """Raises BrokerError."""
    name = str(requester)
    if len(tokens) < MOST_OF_ONE or (
        sum(each.requester == name for each in tokens.values()) < MOST_OF_ONE
    ):
        return
    raise BrokerError(
        ErrorCode.POLICY_VIOLATION,
        f"{name} has {MOST_OF_ONE} delegation tokens, the most of one user: expire some of them",
    )


def renew(
    image: MetadataImage,
    settings: TokenSettings,
    given: bytes,
    period_ms: int,
    principal: Principal,
    wall_ms: int,
) -> Generator[None, None, TokenDecision]:
    """The token with this HMAC, with another expiry. `period_ms` not above 0: as long as the
    setting says. Raises BrokerError.
    """
    token = yield from _found(image, settings, given)
    if is_over(token, wall_ms):
        raise BrokerError(ErrorCode.DELEGATION_TOKEN_EXPIRED)
    _check_may_change(token, principal)
    period_ms = min(settings.expiry_ms, period_ms) if period_ms > 0 else settings.expiry_ms
    return _until(token, wall_ms + period_ms)


def expire(
    image: MetadataImage,
    settings: TokenSettings,
    given: bytes,
    period_ms: int,
    principal: Principal,
    wall_ms: int,
) -> Generator[None, None, TokenDecision]:
    """The token with this HMAC, with another expiry; `period_ms` below 0 removes it. Raises
    BrokerError.
    """
    token = yield from _found(image, settings, given)
    _check_may_change(token, principal)
    if period_ms < 0:
        removal = RemoveDelegationTokenRecord(token_id=token.token_id)
        return TokenDecision([removal], _with_expiry(token, wall_ms), is_removed=True)
    if is_over(token, wall_ms):
        raise BrokerError(ErrorCode.DELEGATION_TOKEN_EXPIRED)
    return _until(token, wall_ms + period_ms)


def _found(
    image: MetadataImage, settings: TokenSettings, given: bytes
) -> Generator[None, None, DelegationTokenRecord]:
    secret = secret_of(settings, image)
    token_id = yield from secret.token_of(image.tokens, bytes(given))
    if token_id is None:
        raise BrokerError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    return image.tokens[token_id]


def _check_may_change(token: DelegationTokenRecord, principal: Principal) -> None:
    """Besides knowing its HMAC one must be the owner or a renewer: being the requester is not
    enough.
    """
    if str(principal) not in (token.owner, *token.renewers):
        raise BrokerError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)


def _until(token: DelegationTokenRecord, wall_ms: int) -> TokenDecision:
    changed = _with_expiry(token, min(token.max_timestamp, wall_ms))
    return TokenDecision([changed], changed)


def _with_expiry(token: DelegationTokenRecord, wall_ms: int) -> DelegationTokenRecord:
    return DelegationTokenRecord(
        owner=token.owner,
        requester=token.requester,
        renewers=list(token.renewers),
        issue_timestamp=token.issue_timestamp,
        max_timestamp=token.max_timestamp,
        expiration_timestamp=wall_ms,
        token_id=token.token_id,
    )


def removals(image: MetadataImage, wall_ms: int) -> Generator[None, None, list[Record]]:
    """The records that remove expired tokens; pauses where there are many."""
    found: list[Record] = []
    for number, token in enumerate(image.tokens.values(), 1):
        if is_over(token, wall_ms):
            found.append(RemoveDelegationTokenRecord(token_id=token.token_id))
        if number % _TOKENS_PER_STEP == 0:
            yield
    return found
