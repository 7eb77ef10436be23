"""A replica outside the ISR that was caught up a moment ago, and then says nothing more."""

from __future__ import annotations

from tests.replication.fixtures import MAX_LAG_MS, Fixture, at, follower, registration


def test_it_stops_holding_the_high_watermark_back_by_time_alone() -> None:
    """RL 2.3: it is waited for as long as it counts as caught up; then what waits with acks=-1
    is answered without any further fetch.
    """
    fixture = Fixture()
    fixture.topic(states={0: registration(1, (1, 2, 3), (1, 2))})
    fixture.produce(1)
    for broker in (2, 3):
        fixture.replicas.fetch(follower(broker), [at(0)])[0].release()
        fixture.replicas.fetch(follower(broker), [at(1)])[0].release()
    fixture.controller.asked.clear()  # 3 was proposed: no answer comes
    fixture.topic(states={0: registration(1, (1, 2, 3), (1, 2), partition_epoch=1)})
    outcome = fixture.produce(1, acks=-1)
    answered: list[None] = []
    fixture.replicas.wait_for_replicas([outcome], 10 * MAX_LAG_MS).addCallback(answered.append)
    fixture.replicas.fetch(follower(2), [at(2)])[0].release()
    assert (
        fixture.partition().log is not None
        and fixture.partition().log.high_watermark == 1
        and not answered
    )
    for _ in range(2 * MAX_LAG_MS // 5000):
        fixture.advance(5)
        fixture.replicas.fetch(follower(2), [at(2)])[0].release()
    assert fixture.partition().log.high_watermark == 2 and answered
