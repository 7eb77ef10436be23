"""The keys of OAUTHBEARER, from a file: read, read again, and kept when they cannot be read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from twisted.internet.defer import maybeDeferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent

from twisted_broker.net.jwks import AGAIN_SECONDS, MOST_BYTES, JwksKeys, fetch


def write(path: Path, *names: str) -> None:
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    entry = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key))
    path.write_text(json.dumps({"keys": [entry | {"kid": name} for name in names]}))


def test_keys_are_read_again(tmp_path: Path) -> None:
    path, clock = tmp_path / "a b.json", Clock()
    url = path.as_uri()
    keys = JwksKeys(url, 60_000, clock, maybeDeferred)
    with capturedLogs() as logs:
        keys.load()
    assert not keys.keys and "every token is refused" in str(formatEvent(logs[0]))
    write(path, "one")
    clock.advance(AGAIN_SECONDS)
    assert [each.key_id for each in keys.keys] == ["one"]
    write(path, "two")
    keys.load_again()
    assert [each.key_id for each in keys.keys] == ["one"]  # it was read just now
    clock.advance(AGAIN_SECONDS)
    keys.load_again()
    assert [each.key_id for each in keys.keys] == ["two"]
    path.write_text("{}")
    with capturedLogs() as logs:
        clock.advance(60)
    assert [each.key_id for each in keys.keys] == ["two"] and "stay" in str(formatEvent(logs[0]))
    keys.stop()
    assert not clock.getDelayedCalls()
    write(path, "three")
    clock.advance(AGAIN_SECONDS)
    keys.load_again()
    assert [each.key_id for each in keys.keys] == ["two"]  # it reads no more


def test_keys_for_which_there_is_no_thread_are_read_later(tmp_path: Path) -> None:
    """Else those of before stay for good, and every token of the next key is refused."""
    path, clock, is_short = tmp_path / "keys", Clock(), [True]
    write(path, "one")

    def in_thread(*arguments: Any) -> Any:
        if is_short[0]:
            raise RuntimeError("can't start new thread")
        return maybeDeferred(*arguments)

    keys = JwksKeys(path.as_uri(), 60_000, clock, in_thread)
    with capturedLogs():
        keys.load()
    is_short[0] = False
    clock.advance(AGAIN_SECONDS)
    assert [each.key_id for each in keys.keys] == ["one"]
    keys.stop()


def test_what_is_not_fetched(tmp_path: Path) -> None:
    for url in ("ftp://127.0.0.1/x", "data:,x", str(tmp_path), ""):
        with pytest.raises(ValueError, match="a URL of"):
            fetch(url)
    big = tmp_path / "big"
    big.write_bytes(bytes(MOST_BYTES + 1))
    with pytest.raises(ValueError, match="longer"):
        fetch(big.as_uri())
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ValueError, match="no regular file"):
        fetch((tmp_path / "fifo").as_uri())
