"""What the API table promises."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

from twisted_broker.api.routes import ROUTES, Route, routes_for, snake_case


def parameters(route: Route, is_controller: bool) -> int:
    """Of its function; by its source, for a compiled coroutine has no signature."""
    if route.forward and not route.module and not is_controller:
        return len(inspect.signature(route.function(is_controller)).parameters)
    module = route.function_module(is_controller)
    source = Path(str(module.__file__)).with_name(f"{module.__name__.rpartition('.')[2]}.py")
    (found,) = (
        each
        for each in ast.parse(source.read_text()).body
        if isinstance(each, ast.AsyncFunctionDef) and each.name == snake_case(route.name)
    )
    return len(found.args.args)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_every_row_has_its_messages_and_functions(route: Route) -> None:
    """Names resolve; a function is `async def (context, request)`; each served version can be
    read and written.
    """
    for is_controller in (False, True):
        versions = route.versions(is_controller)
        if versions.max < 0:
            continue
        function = route.function(is_controller)
        assert inspect.iscoroutinefunction(function)
        assert parameters(route, is_controller) == 2
        for cls in (route.request_class(), route.response_class()):
            assert cls.api_key == route.api_key
            assert cls.versions.min <= versions.min and versions.max <= cls.versions.max


def test_the_table_is_sorted_and_without_doubles() -> None:
    """One row per key, in order, so that a reader finds it."""
    keys = [route.api_key for route in ROUTES]
    assert keys == sorted(set(keys))


def test_what_brokers_alone_may_ask_is_not_on_the_clients_listener() -> None:
    """Registration, heartbeats and AlterPartition are served by controllers, for nodes of the
    cluster.
    """
    assert not {56, 58, 62, 63, 67} & set(routes_for(False))
    assert all(
        route.cluster_action for route in ROUTES if route.api_key in (56, 58, 59, 62, 63, 67, 73)
    )


def test_names_of_functions() -> None:
    """The API's name in snake_case."""
    names = ["OffsetForLeaderEpoch", "Fetch", "ApiVersions"]
    assert [snake_case(name) for name in names] == [
        "offset_for_leader_epoch",
        "fetch",
        "api_versions",
    ]
