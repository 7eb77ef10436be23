"""What a controller counts for its metrics."""

from __future__ import annotations

from tests.cluster.fixtures import Fixture
from tests.log.manual_worker import ManualWorker
from twisted_broker.wire.messages.metadata_records import NoOpRecord


def test_commits_are_timed_until_they_are_durable() -> None:
    """`commit-latency-avg` and `-max` are of changes that became durable, each from its own append;
    what is refused at the stop is not counted.
    """
    worker = ManualWorker()
    fixture = Fixture(worker, {"metadata.max.idle.interval.ms": "0"})
    fixture.start()
    controller = fixture.controller
    while worker.jobs:
        worker.run_one()
    commits, seconds = controller.commits, controller.commit_seconds
    assert commits > 0 and seconds == 0
    controller.write([NoOpRecord()])
    fixture.clock.advance(0.25)
    controller.write([NoOpRecord()])
    fixture.clock.advance(0.5)
    while worker.jobs:
        worker.run_one()
    assert controller.commits == commits + 2
    assert (controller.commit_seconds, controller.most_commit_seconds) == (0.75 + 0.5, 0.75)
    controller.write([NoOpRecord()]).addErrback(lambda failure: None)
    controller._refuse_waiting()
    assert (controller.commits, len(controller._written_at)) == (commits + 2, 0)
