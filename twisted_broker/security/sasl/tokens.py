"""Delegation tokens: what is derived of their ids by the cluster's secret (KIP-48).

Owns `TokenSecret`, of one node.

1. A token's HMAC is HmacSHA512 of its id under `delegation.token.secret.key`. It is the token's
   password, and is stored nowhere: neither in the metadata log nor here (`token_of` remembers
   digests of HMACs).
2. No `repr` shows the secret.
3. What is remembered is bounded: a digest for each token of the cluster, which bounds their number
   (`cluster/token_changes.py`), and `_CREDENTIALS` credentials.

Source: Kafka's `DelegationTokenManager`, `DelegationTokenCache`. Not here: who may have a token
(`api/tokens.py`), tokens in the metadata log (`cluster/token_changes.py`).
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode
from collections.abc import Collection, Generator

from twisted_broker.security.sasl.scram import (
    MIN_ITERATIONS,
    NONCE_BYTES,
    ScramCredential,
    ScramMechanism,
    credential_of,
    salted_password,
)

_HASH = "sha512"
_CREDENTIALS = 1000
# Of a step: each is some 3 us.
_IDS_PER_STEP = 500


class TokenSecret:
    """`secret`: the value of `delegation.token.secret.key`, not empty."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()
        self._credentials: dict[tuple[str, str], ScramCredential] = {}
        self._ids: Collection[str] = ()
        self._by_digest: dict[bytes, str] = {}
        self._digests: dict[str, bytes] = {}

    def hmac_of(self, token_id: str) -> bytes:
        """The token's HMAC: whoever has it can act for the token's owner."""
        return hmac.digest(self._secret, token_id.encode(), _HASH)

    def credential(self, mechanism: ScramMechanism, token_id: str) -> ScramCredential:
        """By which a token authenticates itself: its password is its HMAC in base64. Some 2 ms of
        the processor when it is first asked for.
        """
        key = mechanism.name, token_id
        found = self._credentials.pop(key, None)
        if found is None:
            # Ids have no comma: no token's HMAC is another's salt.
            salt = self.hmac_of(f"salt,{mechanism.name},{token_id}")[:NONCE_BYTES]
            password = b64encode(self.hmac_of(token_id)).decode()
            salted = salted_password(mechanism, password, salt, MIN_ITERATIONS)
            found = credential_of(mechanism, salted, salt, MIN_ITERATIONS)
            if len(self._credentials) >= _CREDENTIALS:
                del self._credentials[next(iter(self._credentials))]
        self._credentials[key] = found
        return found

    def token_of(
        self, token_ids: Collection[str], given: bytes
    ) -> Generator[None, None, str | None]:
        """Which of the tokens has this HMAC; None: none. Pauses where many are new. `token_ids`
        never changes: another collection is given when others are there.
        """
        if token_ids is not self._ids:
            for gone in self._digests.keys() - set(token_ids):
                self._by_digest.pop(self._digests.pop(gone), None)
            fresh = [each for each in token_ids if each not in self._digests]
            for number, token_id in enumerate(fresh, 1):
                digest = self._digest(self.hmac_of(token_id))
                self._digests[token_id], self._by_digest[digest] = digest, token_id
                if number % _IDS_PER_STEP == 0:
                    yield
            self._ids = token_ids
        found = self._by_digest.get(self._digest(given))
        # Another search, of former tokens, may have left one that is gone.
        return found if found in token_ids else None

    def _digest(self, given: bytes) -> bytes:
        """Looked up in place of the HMAC: how long that takes says nothing about it."""
        return hashlib.sha256(given).digest()
