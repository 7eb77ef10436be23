"""The page at `/`: the state of one broker.

Owns the HTML. No script, no file besides it.

1. Everything that came from outside is escaped.
2. At most `ROWS_SHOWN` partitions; `?topic=NAME` shows those of one topic.

Source: our own. Not here: what it shows (`status/view.py`), HTTP (`status/http_resources.py`).
"""

from __future__ import annotations

from html import escape
from itertools import islice

from twisted_broker.interfaces import TopicPartition
from twisted_broker.replication.explain.explanation import Explanation
from twisted_broker.replication.explain.reasons import Moment
from twisted_broker.status.view import BrokerView

# A page of 10,000 partitions would hold the reactor; `?topic=` shows the others.
ROWS_SHOWN = 500
_COLUMNS = (
    "partition",
    "role here",
    "leader",
    "epoch",
    "replicas",
    "in sync",
    "log",
    "high watermark",
    "what waits, and for what",
)
_STYLE = (
    "body{font:14px/1.4 system-ui,sans-serif;margin:2em;color:#222}table{border-collapse:collapse}"
    "th,td{text-align:left;vertical-align:top;padding:.2em .8em;border-bottom:1px solid "
    "#ddd}th{font-weight:600}.wait{color:#8a4b00}"
)


def page(view: BrokerView, topic: str | None) -> str:
    """The whole document. `topic` None: of all topics."""
    names = [name for name in view.partitions() if topic is None or name.topic == topic]
    shown, now = list(islice(names, ROWS_SHOWN)), view.now()
    node = (
        f"Broker {view.parts.node_id}"
        if view.replicas is not None
        else f"Controller {view.parts.node_id}"
    )
    return (
        "<!DOCTYPE html><html lang='en'><head><meta "
        f"charset='utf-8'><title>{node}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{node} of cluster "
        f"{escape(view.parts.cluster_id)}</h1><p>{_summary(view, names, shown)}</p>"
        f"<table><tr>{''.join(f'<th>{column}</th>' for column in _COLUMNS)}</tr>"
        f"{''.join(_row(view, name, now) for name in shown)}</table></body></html>\n"
    )


def _summary(view: BrokerView, names: list[TopicPartition], shown: list[TopicPartition]) -> str:
    more = (
        ""
        if len(names) == len(shown)
        else f"; the first {len(shown)} are shown, <code>?topic=NAME</code> shows those of one"
    )
    topics = len({name.topic for name in names})
    return (
        f"{topics} topics, {len(names)} partitions{more}. Numbers for Prometheus: <a "
        "href='/metrics'>/metrics</a>."
    )


def _row(view: BrokerView, name: TopicPartition, now: Moment) -> str:
    held = None if view.replicas is None else view.replicas.partitions.get(name)
    link = f"<a href='/explain/{escape(name.topic)}/{name.partition}'>{escape(str(name))}</a>"
    known = view.metadata(name)
    if held is None:
        assert known is not None
        cells = [
            link,
            "none",
            str(known["leader"]),
            str(known["leader_epoch"]),
            _list(known["replicas"]),
            _list(known["isr"]),
            "",
            "",
            "",
        ]
    else:
        state = view.explanation(held, now, waiting=False)
        in_sync = state.isr if state.role == "leader" or known is None else known["isr"]
        log = f"{state.log_start} to {state.log_end}"
        cells = [
            link,
            state.role,
            str(state.leader),
            str(state.leader_epoch),
            _list(state.replicas),
            _list(in_sync),
            log,
            str(state.high_watermark),
            _waits(state, len(view.watching(name))),
        ]
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _list(brokers: list[int]) -> str:
    return ", ".join(map(str, brokers))


def _waits(state: Explanation, requests: int) -> str:
    lines = [f"broker {out.broker} is out of sync: {out.why}" for out in state.out_of_sync]
    if state.high_watermark_waits is not None:
        lines.append(f"high watermark: {state.high_watermark_waits.why}")
    if state.fetching is not None and (state.fetching.phase != "fetching" or state.fetching.lag):
        lines.append(state.fetching.why)
    if requests:
        lines.append(f"{requests} requests wait" if requests > 1 else "1 request waits")
    return "<br>".join(f"<span class='wait'>{escape(line)}</span>" for line in lines)
