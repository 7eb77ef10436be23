"""The names of a metric in Prometheus, derived from the name of Kafka's MBean.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns the rules by which exporters of Kafka's MBeans name them.

1. Three sets of rules are obeyed, those for which dashboards are published: jmx_exporter's sample
   for Kafka, Strimzi's, and Confluent's jmx-monitoring-stacks. Where they differ a metric has
   several names, each with the same values.
2. Names are in lower case in all three. Labels keep their case in the first two and are in lower
   case in the third: where the names are the same, the series has both labels, and is one series.
3. A metric that is not Kafka's begins with `replog_` (ours), or has the name that its well-known
   exporter gives it (kafka_exporter, Prometheus' own clients).

Source: `examples/kafka-2_0_0.yml` and `kafka-kraft-3_0_0.yml` of prometheus/jmx_exporter,
`examples/metrics/kafka-metrics.yaml` of strimzi/strimzi-kafka-operator,
`shared-assets/jmx-exporter/kafka_broker.yml` of confluentinc/jmx-monitoring-stacks.
Not here: values (`status/metrics.py` and its neighbours), the text format (`metric_text.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple


class Kind(Enum):
    """The attribute of an MBean, which gives the metric its name."""

    GAUGE = "gauge"
    METER = "meter"
    """`NamePerSec`: the count since the start"""
    HISTOGRAM = "histogram"
    """a summary with quantiles"""
    IDLE_METER = "idle meter"
    """a `NamePercent` that is a meter: its rate"""
    IDLE_GAUGE = "idle gauge"
    """a `NamePercent` that is a gauge"""
    ATTRIBUTE = "attribute"
    """an attribute of an MBean without a name: a gauge"""
    TOTAL = "total"
    """an attribute that counts since the start"""


class MBean(NamedTuple):
    """`domain` without its `kafka.`; `keys`: the properties besides type and name."""

    domain: str
    type: str
    name: str
    kind: Kind
    keys: tuple[str, ...] = ()


class Name(NamedTuple):
    """A metric's name, and the labels; `sources`: which key each label has its value from."""

    text: str
    labels: tuple[str, ...]
    sources: tuple[int, ...]


_ADDRESS = ("brokerHost", "brokerPort")


def _plain(bean: MBean, kind_of_type: Callable[[str], str] = lambda text: text) -> str:
    text = f"kafka_{bean.domain}_{kind_of_type(bean.type)}_{bean.name}"
    return re.sub(r"[^a-z0-9_]", "_", text.lower())


def _without(text: str, end: str) -> str:
    assert text.endswith(end), text
    return text[: -len(end)]


def _labels(bean: MBean, form: Callable[[str], str]) -> tuple[str, ...]:
    return tuple(form(key).replace("-", "_") for key in bean.keys)


def _same(text: str) -> str:
    return text


def _snake(text: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text).lower()


def _sample(bean: MBean) -> tuple[str, tuple[str, ...]]:
    text = _plain(bean)
    if bean.kind is Kind.METER:
        text = _without(text, "persec") + "_total"
    elif bean.kind is Kind.IDLE_METER:
        text = _without(text, "percent") + "_percent"
    return text, _labels(bean, _same)


def _strimzi(bean: MBean) -> tuple[str, tuple[str, ...]]:
    if bean.kind in (Kind.ATTRIBUTE, Kind.TOTAL):
        # Of an MBean without properties the name is written out, and has no dashes.
        joined: Callable[[str], str] = (
            (lambda text: text.replace("-", "")) if not bean.keys else _same
        )
        text = _plain(bean, joined)
        software = bean.name == "connections"
        return text + ("_software" if software else ""), _labels(bean, _same)
    text, labels = _sample(bean)
    if bean.kind is Kind.IDLE_GAUGE:
        text = _without(text, "percent") + "_percent"
    return text, labels


def _confluent(bean: MBean) -> tuple[str, tuple[str, ...]]:
    if bean.kind in (Kind.ATTRIBUTE, Kind.TOTAL) and bean.keys:
        return _plain(bean, lambda text: text.replace("-", "")), _labels(bean, _snake)
    text = _plain(bean)
    if bean.kind is Kind.IDLE_METER:
        text += "_oneminuterate"
    return text, _labels(bean, str.lower)


def names(bean: MBean) -> list[Name]:
    """All names of it, each once: the first is that of jmx_exporter's sample."""
    found: dict[str, dict[str, int]] = {}
    for rule in (_sample, _strimzi, _confluent):
        text, labels = rule(bean)
        found.setdefault(text, {}).update((label, at) for at, label in enumerate(labels))
    return [Name(text, tuple(labels), tuple(labels.values())) for text, labels in found.items()]
