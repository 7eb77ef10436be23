"""Why an authentication ended.

1. No text of an error holds a password, a key or a token. A name that came from the client is
   quoted before it is logged.

Not here: the log lines (`api/sasl.py`, `net/client.py`).
"""

from __future__ import annotations

from twisted_broker.wire.errors import ErrorCode


class SaslFailure(Exception):
    """The authentication failed. `str()` is for the operator.

    `public`: the sentence that the client gets; None for the general one, which does not say what
    was wrong. `code`: what the other node answered to us.
    """

    def __init__(
        self, reason: str, public: str | None = None, code: ErrorCode = ErrorCode.NONE
    ) -> None:
        super().__init__(reason)
        self.public, self.code = public, code
