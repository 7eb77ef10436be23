"""How long a broker that was asked to stop waits for a controller, and what it says."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.logger import capturedLogs, formatEvent

from tests.cluster.controller_fixture import PORT, ControllerFixture, MemberSide, served
from tests.cluster.test_broker_lifecycle_manager import MuteController
from twisted_broker.cluster.broker_lifecycle_manager import BrokerState

MUTE_PORT = 9999


@pytest.fixture
def fixture() -> ControllerFixture:
    return served()


def member_with_leadership(
    fixture: ControllerFixture, bootstrap: list[tuple[str, int]] | None = None, **settings: str
) -> MemberSide:
    member = MemberSide(fixture, 2, bootstrap, **settings).follow().join()
    fixture.place_topic("t", [2])
    return member


def leaving_seconds(
    fixture: ControllerFixture, member: MemberSide, at_most: float = 60.0
) -> tuple[float, list[str]]:
    """How long it waits, and what it says."""
    began = fixture.clock.seconds()
    ends: list[float] = []
    with capturedLogs() as told:
        member.lifecycle.controlled_shutdown().addCallback(
            lambda _: ends.append(fixture.clock.seconds())
        )
        fixture.pass_time(at_most)
    assert ends and member.lifecycle.state is BrokerState.SHUTTING_DOWN
    return ends[0] - began, [line for line in map(formatEvent, told) if line and "shutdown" in line]


def listen_mute(fixture: ControllerFixture, port: int) -> None:
    opened: list[Any] = []
    fixture.network.listen("127.0.0.1", port, MuteController()).addCallback(opened.append)
    assert opened


def test_a_dead_controller_is_not_waited_for(fixture: ControllerFixture) -> None:
    """RL 8.2: whoever led is gone, and every address refuses:
    `controller.quorum.fetch.timeout.ms`, for one that restarts just now.
    """
    member = member_with_leadership(fixture)
    fixture.crash()
    seconds, lines = leaving_seconds(fixture, member)
    assert 2.0 <= seconds < 2.5
    assert lines[0] == "controlled shutdown: 1 partition(s) still to hand over"
    assert (
        "connections refused for 2" in lines[-1]
        and "nobody can take over the 1 partition(s) led here" in lines[-1]
    )


def test_one_that_has_been_dead_for_long_is_not_waited_for_again(
    fixture: ControllerFixture,
) -> None:
    """The refusals before the stop count."""
    member = member_with_leadership(fixture)
    fixture.crash()
    fixture.pass_time(30.0)
    seconds, _ = leaving_seconds(fixture, member)
    assert seconds < 0.5


def test_a_controller_that_comes_back_in_time_moves_the_leaders(fixture: ControllerFixture) -> None:
    """The short wait has its reason."""
    member, other = member_with_leadership(fixture), MemberSide(fixture, 3).follow().join()
    fixture.place_topic("u", [2, 3])
    fixture.crash()
    left = member.lifecycle.controlled_shutdown()
    fixture.pass_time(1.0)
    assert not left.called
    fixture.restart()
    fixture.serve()
    fixture.pass_time(5.0)
    assert left.called and other.observer.image.topics_by_name["u"].partitions[0].leader == 3
    assert fixture.controller.image.brokers[2].fenced


def test_a_silent_controller_gets_the_whole_time(fixture: ControllerFixture) -> None:
    """RL 8.2: it may be well, behind a way that is blocked: the bound is a setting, named in what
    is said every second.
    """
    member = member_with_leadership(fixture, **{"replog.controlled.shutdown.timeout.ms": "20000"})
    fixture.crash()
    listen_mute(fixture, PORT)
    seconds, lines = leaving_seconds(fixture, member)
    assert 20.0 <= seconds < 20.5
    assert len(lines) == 21
    assert lines[10].startswith(
        "controlled shutdown: 1 partition(s) still to hand over; no controller answers, "
        "waiting up to 10000 ms more"
    )
    assert all("replog.controlled.shutdown.timeout.ms" in line for line in lines[1:])
    assert "1 partition(s) are not handed over" in lines[-1]


def test_one_address_that_does_not_refuse_is_hope(fixture: ControllerFixture) -> None:
    """Two addresses, of which one says nothing: a controller may live there."""
    member = member_with_leadership(fixture, [("127.0.0.1", PORT), ("127.0.0.1", MUTE_PORT)])
    listen_mute(fixture, MUTE_PORT)
    fixture.crash()
    seconds, _ = leaving_seconds(fixture, member)
    assert 10.0 <= seconds < 10.5


def test_a_second_signal_skips_the_wait(fixture: ControllerFixture) -> None:
    """RL 8.2: the wait ends there and then; before there is one, or after it, nothing happens."""
    member = member_with_leadership(fixture)
    fixture.crash()
    listen_mute(fixture, PORT)
    member.lifecycle.skip_controlled_shutdown()
    assert member.lifecycle.state is BrokerState.RUNNING
    left = member.lifecycle.controlled_shutdown()
    fixture.pass_time(3.0)
    assert not left.called
    at = fixture.clock.seconds()
    with capturedLogs() as told:
        member.lifecycle.skip_controlled_shutdown()
        member.lifecycle.skip_controlled_shutdown()
    assert left.called and fixture.clock.seconds() == at
    assert [formatEvent(each) for each in told] == [
        (
            "controlled shutdown: second signal: this broker stops without handing over 1 "
            "partition(s)"
        )
    ]
    member.stop()
    fixture.pass_time(20.0)


def test_no_time_at_all(fixture: ControllerFixture) -> None:
    """0: the controller is asked, and not waited for."""
    member = member_with_leadership(fixture, **{"replog.controlled.shutdown.timeout.ms": "0"})
    fixture.crash()
    seconds, _ = leaving_seconds(fixture, member)
    assert seconds == 0
