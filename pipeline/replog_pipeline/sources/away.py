"""How to recognise that brokers are away, in the error of a query or of a task.

1. An answer that says no (a missing topic, a refusal) does not count as away.

Not here: whether to wait (the job's decision).
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
    """Whether this failed because no broker answered; Spark says so in the text of its own
    error.
    """
    return isinstance(error, BrokersAwayError) or (
        from_spark(error) and any(sign in text_of(error) for sign in SIGNS)
    )
