"""What `api/refusals.py` promises, for every row of the table: a refusal can always be written,
and says why.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.api.random_messages import random_message
from twisted_broker.api.dispatch import BoundRoute
from twisted_broker.api.refusals import refusal
from twisted_broker.api.routes import ROUTES, Route
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from twisted_broker.wire.messages.groups import DescribeGroupsRequest, DescribeGroupsResponse
from twisted_broker.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from twisted_broker.wire.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from twisted_broker.wire.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredEntry,
    QuotaEntityData,
)
from twisted_broker.wire.schema import Struct, decode, encode

CODE = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def error_codes(struct: Any) -> list[int]:
    """Every error code inside, at any depth."""
    found = []
    for field in struct.FIELDS:
        value = getattr(struct, field.name)
        if field.name == "error_code":
            found.append(value)
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, Struct):
                found += error_codes(each)
    return found


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_a_refusal_as_a_whole_does_not_look_at_the_request(route: Route) -> None:
    """`SuspendedResponse` drops such requests: the refusal must not need them."""
    for on_controller, versions in ((False, route.broker), (True, route.controller)):
        for version in range(versions.min, versions.max + 1):
            served = BoundRoute(route, version, on_controller)
            if served.refused_as_a_whole:
                assert CODE in error_codes(served.refuse(None, CODE, None))


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_every_api_can_refuse_at_every_version(route: Route) -> None:
    """Whatever was asked: the refusal encodes, decodes, and carries the code once anything in it
    can.
    """
    lowest = min(versions.min for versions in (route.broker, route.controller) if versions.max >= 0)
    for version in range(lowest, max(route.broker.max, route.controller.max) + 1):
        for seed in range(10):
            request = random_message(
                Random(f"{route.name} {version} {seed}"), route.request_class(), version
            )
            answer = refusal(request, route.response_class(), version, CODE, "why")
            read = decode(route.response_class(), encode(answer, version), version)
            assert set(error_codes(read)) <= {0, CODE}
        if any(
            field.name == "error_code" and field.is_in(version)
            for field in route.response_class().FIELDS
        ):
            assert read.error_code == CODE


def test_a_fetch_is_refused_at_its_top_or_per_partition() -> None:
    """From version 7 on the answer has an error of its own; before, each partition has, with
    unknown watermarks (RL 5.1).
    """
    request = FetchRequest(
        topics=[
            FetchTopic(
                topic="a", partitions=[FetchPartition(partition=3), FetchPartition(partition=4)]
            )
        ]
    )
    assert refusal(request, FetchResponse, 7, CODE).error_code == CODE
    (topic,) = refusal(request, FetchResponse, 6, CODE).responses
    assert [
        (part.partition_index, part.error_code, part.high_watermark) for part in topic.partitions
    ] == [(3, CODE, -1), (4, CODE, -1)]


def test_lists_of_plain_names_are_mirrored() -> None:
    """DescribeGroups asks by names alone: each group has its error."""
    answer = refusal(DescribeGroupsRequest(groups=["a", "b"]), DescribeGroupsResponse, 5, CODE)
    assert [(group.group_id, group.error_code) for group in answer.groups] == [
        ("a", CODE),
        ("b", CODE),
    ]


def test_lists_of_plain_numbers_are_mirrored() -> None:
    """OffsetFetch 1 asks by partition numbers: each has its error, and no offset."""
    request = OffsetFetchRequest(
        group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0, 2])]
    )
    (topic,) = refusal(request, OffsetFetchResponse, 1, CODE).topics
    assert [
        (part.partition_index, part.error_code, part.committed_offset) for part in topic.partitions
    ] == [(0, CODE, -1), (2, CODE, -1)]


def test_a_null_name_is_empty_where_the_answer_has_no_null() -> None:
    """Metadata 10 may ask by id with a null name; its answer has no null names before version
    12.
    """
    request = MetadataRequest(topics=[MetadataRequestTopic(topic_id=bytes(range(16)), name=None)])
    assert refusal(request, MetadataResponse, 10, CODE).topics[0].name == ""
    assert refusal(request, MetadataResponse, 12, CODE).topics[0].name is None


def test_a_quotas_entity_is_named() -> None:
    """By which a client finds its answer."""
    entity = [QuotaEntityData(entity_type="user", entity_name="u")]
    request = AlterClientQuotasRequest(entries=[AlteredEntry(entity=entity)])
    answer = refusal(request, AlterClientQuotasResponse, 1, CODE)
    (refused,) = answer.entries
    assert (refused.error_code, refused.entity) == (CODE, entity)
