"""Which cleanup policy a topic is checked by, and how it is known: a hole is damage under `delete`,
and a cleaner's work under `compact`.

1. The caller's option comes first; then the cluster's setting; for a directory its
   metadata log, internal topics, a cleaner's checkpoint.
2. Else `delete` is assumed, until batches show that records were taken out of them (`check`).

Source: Kafka's TopicConfig and LogCleanerManager. Not here: reading the metadata log
(`metadata_policies`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from replog_pipeline.errors import PipelineError
from replog_pipeline.segments.log_folder import Folder

DELETE, COMPACT = "delete", "compact"
COMPACTED = ("__consumer_offsets", "__transaction_state")
ALL = ""


class Policy(NamedTuple):
    """`policies`: of `delete` and `compact`; `source` says who said so; `assumed` when nobody
    did.
    """

    policies: frozenset[str]
    source: str
    assumed: bool = False

    @property
    def compacts(self) -> bool:
        return COMPACT in self.policies

    def __str__(self) -> str:
        return ",".join(sorted(self.policies))


def given(settings: Sequence[str]) -> dict[str, Policy]:
    """topic -> policy from `POLICY` (under the key `ALL`) or `TOPIC=POLICY`.

    PipelineError for another word.
    """
    found = {}
    for setting in settings:
        topic, _, words = setting.rpartition("=")
        found[topic] = Policy(policies(words, "--cleanup-policy"), "the option")
    return found


def policies(words: str, setting: str) -> frozenset[str]:
    """The policies of `delete,compact` and its like."""
    named = frozenset(word.strip() for word in words.split(",") if word.strip())
    if not named or not named <= {DELETE, COMPACT}:
        raise PipelineError(
            f"{setting}: {words!r} is no cleanup policy: write delete, compact or "
            "compact,delete, or TOPIC=POLICY"
        )
    return named


def of_folder(folder: Folder, said: Mapping[str, Policy], recorded: Mapping[str, str]) -> Policy:
    """The policy of a partition in a log directory, whose metadata log `recorded` topic ->
    policy.
    """
    told = said.get(folder.topic) or said.get(ALL)
    if told is not None:
        return told
    if folder.topic in recorded:
        return Policy(policies(recorded[folder.topic], "cleanup.policy"), "the metadata log")
    if folder.topic in COMPACTED:
        return Policy(frozenset({COMPACT}), "an internal topic")
    if folder.cleaned_to:
        return Policy(frozenset({COMPACT}), "the cleaner's checkpoint")
    return Policy(frozenset({DELETE}), "assumed", True)


def of_topic(topic: str, said: Mapping[str, Policy], config: Mapping[str, str]) -> Policy:
    """The policy of a topic of a cluster, whose settings are `config`."""
    told = said.get(topic) or said.get(ALL)
    return told or Policy(policies(config["cleanup.policy"], "cleanup.policy"), "the cluster")
