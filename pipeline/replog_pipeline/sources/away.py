"""How to recognise that brokers, or a schema registry, are away, in the error of a query or of a
task.

1. An answer that says no (a missing topic, a refusal) does not count as away.

Not here: whether to wait (the job's decision).
"""

from __future__ import annotations

from replog_pipeline.errors import (
    REGISTRY_AWAY,
    PipelineError,
    RegistryAwayError,
    from_spark,
    text_of,
)

SIGNS = (
    "org.apache.kafka.common.errors.TimeoutException",
    "org.apache.kafka.common.errors.DisconnectException",
    "Cannot fetch record for offset",
    REGISTRY_AWAY,
)
"""Of Kafka's clients, of Spark's connector when its consumer got nothing in time, and of a task
that wants a schema.
"""


class BrokersAwayError(PipelineError):
    """Nobody answered in time."""


def are_away(error: Exception) -> bool:
    """Whether this failed because nobody answered; Spark says so in the text of its own
    error.
    """
    return isinstance(error, BrokersAwayError | RegistryAwayError) or (
        from_spark(error) and any(sign in text_of(error) for sign in SIGNS)
    )
