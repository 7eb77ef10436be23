"""Numbers of a mirror, in Prometheus' format and for people."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from twisted_broker.interfaces import TopicPartition
from twisted_broker.mirror.metrics import metrics_text, rows, summary
from twisted_broker.mirror.mirror import Progress

PROGRESS = [
    Progress(TopicPartition("t", 0), 0, 7, 10, 3, 500),
    Progress(TopicPartition("t", 1), 2, 5, 5, 0, 100),
    Progress(TopicPartition("u", 0), -1, -1, -1, None, 0),
]


def test_what_is_not_known_is_left_out() -> None:
    found = {
        (sample.name, sample.labels["topic"], sample.labels["partition"]): sample.value
        for family in text_string_to_metric_families(metrics_text(PROGRESS).decode())
        for sample in family.samples
    }
    assert found["replog_mirror_lag", "t", "0"] == 3
    assert found["replog_mirror_lag", "t", "1"] == 0
    assert found["replog_mirror_log_start_offset", "t", "1"] == 2
    assert found["replog_mirror_bytes_total", "u", "0"] == 0
    assert ("replog_mirror_lag", "u", "0") not in found


def test_for_people_the_largest_lag_comes_first() -> None:
    assert rows(PROGRESS) == [
        ("t-0", "7", "10", "3"),
        ("t-1", "5", "5", "0"),
        ("u-0", "", "", ""),
    ]
    assert summary(PROGRESS) == (
        "3 partitions, 1 behind by 3 records, 1 not known yet, 0.0 MB mirrored"
    )
    assert summary(PROGRESS[:1]).startswith("1 partition, 1 behind")
