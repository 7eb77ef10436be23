"""The names of topics: which are the broker's own, and which a topic may have.

1. 1 to 249 characters of `a-z A-Z 0-9 . _ -`, neither `.` nor `..`: a name is also the name of a
   directory.
2. Two names that differ only in `.` and `_` collide: metrics replace one by the other.

Source: Kafka's `Topic`; docs/ARCHITECTURE.md 8. Not here: who may create which.
"""

from __future__ import annotations

import re

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
SHARE_STATE_TOPIC = "__share_group_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, SHARE_STATE_TOPIC})
METADATA_TOPIC = "__cluster_metadata"
METADATA_DIRECTORY = f"{METADATA_TOPIC}-0"
METADATA_TOPIC_ID = bytes(15) + b"\x01"
MAX_NAME_LENGTH = 249

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def name_problem(name: str) -> str | None:
    """Why a name is no topic's, in a sentence; None when it may be one."""
    if not name:
        return "a topic name must not be empty"
    if name in (".", ".."):
        return "a topic name must be neither '.' nor '..'"
    if len(name) > MAX_NAME_LENGTH:
        return f"a topic name has at most {MAX_NAME_LENGTH} characters, not {len(name)}"
    if _LEGAL.fullmatch(name) is None:
        return f"topic name {name!r} has other characters than letters, digits, '.', '_' and '-'"
    return None


def collision_key(name: str) -> str:
    """Names with the same key collide."""
    return name.replace(".", "_")
