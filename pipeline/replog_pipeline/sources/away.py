"""Brokers that are away: what it looks like, whether a question to the cluster found it out or a
task that read.

An answer that says no (a topic that is not there, a refusal) is not that. Not here: whether to
wait; that is the job's.
"""

from __future__ import annotations

from replog_pipeline.errors import PipelineError, from_spark, text_of

SIGNS = (
    "org.apache.kafka.common.errors.TimeoutException",
    "org.apache.kafka.common.errors.DisconnectException",
    "Cannot fetch record for offset",
)
"""Of Kafka's clients, and of Spark's connector when its consumer got nothing in time."""


class BrokersAwayError(PipelineError):
    """Nobody answered in time."""


def are_away(error: Exception) -> bool:
    """Whether this failed because no broker answered; Spark tells of it in the text of its own
    error.
    """
    return isinstance(error, BrokersAwayError) or (
        from_spark(error) and any(sign in text_of(error) for sign in SIGNS)
    )
