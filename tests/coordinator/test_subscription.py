"""Subscriptions of real consumers, and of nobody."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twisted_broker.coordinator.subscription import MalformedSubscription, subscribed_topics
from twisted_broker.wire.messages.consumer_protocol import (
    ConsumerProtocolSubscription,
    ConsumerProtocolSubscriptionTopicPartition,
)
from twisted_broker.wire.schema import encode


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_every_version_is_read(version):
    """What later versions append is passed over; so is a version that nobody knows yet."""
    owned = [ConsumerProtocolSubscriptionTopicPartition(topic="a", partitions=[1, 2])]
    subscription = ConsumerProtocolSubscription(
        topics=["a", "b"], user_data=b"mine", owned_partitions=owned, generation_id=5, rack_id="r"
    )
    body = encode(subscription, version)
    assert subscribed_topics(version.to_bytes(2, "big") + body) == ["a", "b"]
    for unknown in (b"\0\x63", b"\1\0", b"\x7f\xff"):
        assert subscribed_topics(unknown + body + b"more") == ["a", "b"]


@given(st.binary(max_size=40))
def test_no_bytes_do_more_than_be_malformed(metadata):
    """Clients may put anything there."""
    with suppress(MalformedSubscription):
        assert all(isinstance(topic, str) for topic in subscribed_topics(metadata))
