"""Access tokens (JWT) by which this node logs in to others: what one is, and how it is requested.

1. A text that is no JWT, or says no expiry, is refused here already. Whether its signature is good
   the other node decides.
2. No `repr` and no error shows a token or a secret.

Source: RFC 6749 (4.4, client credentials); Kafka's `ClientCredentialsJwtRetriever`,
`FileJwtRetriever`. Not here: the login (`oauth_client.py`), files and connections, when a token is
requested again (`net/access_tokens.py`).
"""

from __future__ import annotations

import json
import re
from base64 import b64encode, urlsafe_b64decode
from typing import NamedTuple
from urllib.parse import urlencode

MOST_CHARACTERS = 65_536
"""In a token."""
_JWT = re.compile(r"[A-Za-z0-9_-]+\.([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]+\Z")


class OAuthLogin(NamedTuple):
    """Where a token comes from: a file (`file:`), or an endpoint that gives one to a client by its
    id and secret.
    """

    url: str
    client_id: str = ""
    client_secret: str = ""
    scope: str = ""

    def __repr__(self) -> str:
        return f"OAuthLogin({self.url})"


class AccessToken(NamedTuple):
    """`text` is a secret."""

    text: str
    expires_wall_ms: int

    def __repr__(self) -> str:
        return f"AccessToken(expires_wall_ms={self.expires_wall_ms})"


def parse_token(text: str) -> AccessToken:
    """ValueError when it is no JWT with an expiry."""
    text = text.strip()
    match = _JWT.match(text) if len(text) <= MOST_CHARACTERS else None
    if match is None:
        raise ValueError("what came is no signed token (JWT)")
    payload = match[1]
    try:
        claims = json.loads(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        expires = claims["exp"]
    except (ValueError, KeyError, TypeError, RecursionError):
        expires = None
    if isinstance(expires, bool) or not isinstance(expires, int | float):
        raise ValueError("the token does not say when it expires")
    if not 0 <= expires < 1e11:
        raise ValueError("the token's expiry is no time in seconds")
    return AccessToken(text, int(expires * 1000))


def token_request(login: OAuthLogin) -> tuple[dict[str, str], bytes]:
    """Headers and body of the request for a token."""
    fields = {"grant_type": "client_credentials"}
    if login.scope:
        fields["scope"] = login.scope
    credentials = b64encode(f"{login.client_id}:{login.client_secret}".encode()).decode()
    headers = {
        "Authorization": f"Basic {credentials}",
        "Accept": "application/json",
        "Cache-Control": "no-cache",
        "Content-Type": "application/x-www-form-urlencoded",
    }
    return headers, urlencode(fields).encode()


def token_of_answer(body: bytes) -> str:
    """ValueError without a token in it."""
    try:
        found = json.loads(body)["access_token"]
    except (ValueError, KeyError, TypeError, RecursionError):
        found = None
    if not isinstance(found, str):
        raise ValueError("the answer of the endpoint holds no access_token")
    return found
