"""The page at `/`: one node and its cluster, troubles first. Ring 1.

Owns the order: health in one line and the troubles, figures, brokers, the controller, log
directories, groups, topics.

1. A broker shows the metadata as it has followed it, its own replicas and the groups that it
   coordinates; a controller the metadata and the brokers' heartbeats. Where both are in one
   process the page has both.
2. At most `PAGE_ROWS` topics and as many groups; `?topic=`, `?group=` choose by a part of the name,
   `topics_from`, `groups_from` by number.

Source: our own. Not here: what is found (`cluster_state.py`, `local_state.py`), the form
(`html.py`), single topics and partitions (`partition_pages.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from twisted.web.template import Tag, tags

from twisted_broker import __version__
from twisted_broker.image.entries import BrokerRegistration
from twisted_broker.image.metadata_image import EMPTY, MetadataImage
from twisted_broker.java_numbers import is_digits
from twisted_broker.raft.leader_state import LeaderState, ReplicaState
from twisted_broker.replication.explain.reasons import duration
from twisted_broker.status.cluster_state import (
    MIN_ISR,
    ClusterState,
    TopicRow,
    Trouble,
    broker_state,
    gather,
    plural,
)
from twisted_broker.status.html import (
    PAGE_ROWS,
    Pauses,
    Table,
    document,
    explain_link,
    facts,
    link,
    main_part,
    number_of,
    pages,
    short,
)
from twisted_broker.status.local_state import (
    Directory,
    GroupRow,
    Groups,
    byte_text,
    directories,
    sizes_by_directory,
    troubles_of_cleaner,
    troubles_of_controller,
    troubles_of_directories,
    troubles_of_quorum,
    troubles_of_replicas,
)
from twisted_broker.status.view import BrokerView

# A page that is written while the cluster burns: enough to see what kinds there are.
TROUBLES_SHOWN = 100
_REFRESH_SECONDS = 10
_LONGEST_FILTER = 249


@dataclass(frozen=True, slots=True)
class Wanted:
    """The choices in the address of the page."""

    topic: str = ""
    group: str = ""
    topics_from: int = 0
    groups_from: int = 0
    refresh: int = 0

    @classmethod
    def of(cls, arguments: Mapping[bytes, list[bytes]]) -> Wanted:
        """From a query; what makes no sense counts as not given."""
        return cls(
            _text(arguments, b"topic"),
            _text(arguments, b"group"),
            number(arguments, b"topics_from"),
            number(arguments, b"groups_from"),
            min(number(arguments, b"refresh"), 3600),
        )

    def query(self, **changes: object) -> str:
        """The address with these changed."""
        own: dict[str, object] = {
            "topic": self.topic,
            "group": self.group,
            "topics_from": self.topics_from,
            "groups_from": self.groups_from,
            "refresh": self.refresh,
        }
        given = {name: str(value) for name, value in {**own, **changes}.items() if value}
        return f"/?{urlencode(given)}" if given else "/"


def _text(arguments: Mapping[bytes, list[bytes]], name: bytes) -> str:
    found = arguments.get(name)
    return found[0].decode(errors="replace")[:_LONGEST_FILTER].strip() if found else ""


def number(arguments: Mapping[bytes, list[bytes]], name: bytes) -> int:
    """A number of at most nine digits, else 0."""
    text = _text(arguments, name)
    return int(text) if is_digits(text) and len(text) < 10 else 0


async def overview(view: BrokerView, pauses: Pauses, wanted: Wanted) -> bytes:
    """The whole page."""
    parts: Any = view.parts
    image, now = image_of(view), view.now()
    state = ClusterState()
    minimum = int(parts.config.integer(MIN_ISR))
    await pauses.run(gather(state, image, minimum, wanted.topic, wanted.topics_from, PAGE_ROWS))
    groups = Groups(wanted.group, wanted.groups_from, PAGE_ROWS, view.parts.share_state)
    own: list[Trouble] = []
    if view.replicas is not None:
        await pauses.run(troubles_of_replicas(view.replicas, now, own))
        if parts.groups is not None:
            await pauses.run(groups.gather(parts.groups, view.replicas))
    found: list[Directory] = []
    unclean: list[Trouble] = []
    if parts.log_manager is not None:
        sizes: dict[str, list[int]] = {}
        await pauses.run(sizes_by_directory(parts.log_manager, sizes))
        found = directories(parts.log_manager, sizes)
        unclean = list(troubles_of_cleaner(parts.log_manager.cleaner.uncleanable))
    troubles = [
        *troubles_of_controller(parts.metadata),
        *troubles_of_quorum(parts.controller),
        *troubles_of_directories(
            found, 0 if parts.log_manager is None else parts.log_manager.free_space.limit
        ),
        *state.troubles(image),
        *own,
        *unclean,
    ]
    # The serious ones first, each in the order in which it was found.
    troubles.sort(key=lambda each: not each.is_serious)
    page = _Page(view, image, state, pauses, wanted)
    return await document(
        f"{page.health_word(troubles)}{name_of(view)} · {short(parts.cluster_id)}",
        wanted.refresh,
        heading(view, refresh=wanted),
        main_part(
            pauses.apart(
                page.health(troubles),
                page.figures(groups, found),
                page.brokers(found),
                page.controller(),
                page.directories(found),
                page.groups(groups),
                page.topics(),
            )
        ),
    )


def number_or_none(node: int) -> str:
    """A node that may not be known."""
    return f"{node}" if node >= 0 else "none is known"


def _standing(voter: ReplicaState, log: Any, now: Any) -> tuple[str, str, str]:
    """Its end, how far that is behind the leader's, and when it was heard."""
    if voter.key.id == log.node_id:
        return f"{log.end_offset:,}", "leads", "here"
    if voter.fetch_ms < 0:
        return "not known", "", "never in this epoch"
    behind = log.end_offset - voter.end_offset
    return f"{voter.end_offset:,}", f"{behind:,}", f"{duration(now.ago(voter.fetch_ms))} ago"


def name_of(view: BrokerView) -> str:
    """The node by id and roles, for the heading."""
    node, is_controller = view.parts.node_id, view.parts.controller is not None
    if view.replicas is None:
        return f"Controller {node}" if is_controller else f"Node {node}, starting"
    return f"Broker {node} and controller" if is_controller else f"Broker {node}"


def image_of(view: BrokerView) -> MetadataImage:
    """The metadata as this node has it; an empty one before there is any."""
    parts: Any = view.parts
    source = parts.metadata if parts.metadata is not None else parts.controller
    return EMPTY if source is None else source.image


def heading(view: BrokerView, refresh: Wanted | None = None) -> Tag:
    """Of every page."""
    again: Any = ""
    if refresh is not None:
        again = (
            tags.a("stop reloading", href=refresh.query(refresh=0))
            if refresh.refresh
            else tags.a(
                f"reload every {_REFRESH_SECONDS} s", href=refresh.query(refresh=_REFRESH_SECONDS)
            )
        )
    return tags.header(
        tags.h1(name_of(view)),
        tags.span(
            "cluster ",
            tags.code(short(view.parts.cluster_id) or "not known yet"),
            **{"class": "soft"},
        ),
        tags.span(f"version {__version__}", **{"class": "soft"}),
        tags.nav(
            *([] if refresh is not None else [tags.a("overview", href="/")]),
            tags.a("live", href="/live/"),
            tags.a("metrics", href="/metrics"),
            again,
            **{"aria-label": "pages"},
        ),
    )


class _Page:
    """The sections."""

    def __init__(
        self,
        view: BrokerView,
        image: MetadataImage,
        state: ClusterState,
        pauses: Pauses,
        wanted: Wanted,
    ) -> None:
        self._view, self._parts = view, view.parts
        self._image, self._state = image, state
        self._pauses, self._wanted = pauses, wanted
        self._controller = view.parts.controller

    # trouble

    def health_word(self, troubles: list[Trouble]) -> str:
        """Before the title: seen on the browser's tab."""
        return f"({sum(each.stands_for for each in troubles):,}) " if troubles else ""

    def health(self, troubles: list[Trouble]) -> Tag:
        """The first line, and the troubles."""
        serious = sum(each.stands_for for each in troubles if each.is_serious)
        rest = sum(each.stands_for for each in troubles) - serious
        if not troubles:
            kind, text = "health", "✓ All is well"
        elif not serious:
            kind, text = "health warn", f"△ {plural(rest, 'warning')}"
        else:
            kind = "health bad"
            text = f"✗ {plural(serious, 'trouble')}"
            text += f", {plural(rest, 'warning')}" if rest else ""
        shown = troubles[:TROUBLES_SHOWN]
        left = sum(each.stands_for for each in troubles[TROUBLES_SHOWN:])
        items: list[Any] = [
            tags.li(
                tags.span(
                    "trouble: " if each.is_serious else "warning: ",
                    **{"class": "bad" if each.is_serious else "warn"},
                ),
                each.text,
                " ",
                _link_of(each),
            )
            for each in shown
        ]
        if left:
            items.append(tags.li(f"and {left:,} more"))
        return tags.section(
            tags.p(text, id="health", **{"class": kind, "role": "status"}),
            tags.ul(self._pauses.rows(items), **{"class": "troubles"}) if items else "",
            **{"aria-label": "health"},
        )

    # figures

    def figures(self, groups: Groups, found: list[Directory]) -> Tag:
        counts, image = self._state.counts, self._image
        live = len(image.live_brokers())
        rows: list[tuple[str, Any]] = [
            ("brokers running", f"{live:,} of {len(image.brokers):,}"),
            ("topics", f"{counts.topics:,}"),
            ("partitions", f"{counts.partitions:,}"),
            ("without a leader", number_of(counts.offline)),
            (f"below {MIN_ISR}", number_of(counts.under_minimum)),
            ("out of sync", number_of(counts.out_of_sync, "warn")),
            ("moving", f"{counts.moving:,}"),
        ]
        if self._view.replicas is not None:
            rows += [
                ("led here", f"{self._state.leaders[self._parts.node_id]:,}"),
                ("groups here", f"{groups.total:,}"),
                ("stored here", byte_text(sum(each.size for each in found))),
            ]
        return facts(*rows)

    # brokers

    def brokers(self, found: list[Directory]) -> Tag:
        image = self._image
        if not image.brokers:
            return tags.section(tags.h2("Brokers"), tags.p("none is registered yet"))
        with_sessions = self._controller is not None
        columns = [
            ("broker", ""),
            ("address", ""),
            ("rack", "wide"),
            ("state", ""),
            ("leaders", "n"),
            ("replicas", "n"),
            ("out of sync", "n"),
            ("disk free", "n wide"),
        ]
        if with_sessions:
            columns += [("metadata offset", "n"), ("last heartbeat", "n wide")]
        table = Table("Registered brokers; partitions that each leads and holds", *columns)
        rows = (
            table.row(
                *self._broker(image.brokers[node], with_sessions, found), mark=f"broker-{node}"
            )
            for node in sorted(image.brokers)
        )
        return tags.section(tags.h2("Brokers"), table.whole(self._pauses.rows(rows)))

    def _broker(
        self, broker: BrokerRegistration, with_sessions: bool, found: list[Directory]
    ) -> Iterator[Any]:
        state = broker_state(broker)
        kind = {"fenced": "bad", "running": "good"}.get(state, "warn")
        is_own = broker.id == self._parts.node_id and self._view.replicas is not None
        yield f"{broker.id} (this one)" if is_own else str(broker.id)
        yield tags.code(
            ", ".join(f"{short(each.host)}:{each.port}" for each in broker.listeners.values())
        )
        yield short(broker.rack or "–")
        yield tags.span(state, **{"class": kind})
        yield f"{self._state.leaders[broker.id]:,}"
        yield f"{self._state.replicas[broker.id]:,}"
        yield number_of(self._state.out_of_sync[broker.id], "warn")
        # Of another broker only that one knows.
        free = [each.free for each in found if each.free >= 0] if is_own else []
        yield byte_text(min(free, default=-1))
        if not with_sessions:
            return
        session = self._controller.sessions.session_of(broker)
        if session is None or not session.heard:
            yield from ("–", "none counts")
            return
        behind = self._image.offset - session.metadata_offset
        yield f"{session.metadata_offset:,}" + (f" ({behind:,} behind)" if behind > 100 else "")
        yield f"{duration(self._view.now().ago(session.contact_ms))} ago"

    # the controller

    def controller(self) -> Any:
        """What only the controller knows."""
        own = self._controller
        if own is None:
            return ""
        counts, leader = self._state.counts, own.log.leader()
        return tags.section(
            tags.h2("Controller"),
            facts(
                ("active controller", number_or_none(leader.leader_id)),
                ("this one is", own.log.state),
                ("epoch", f"{leader.epoch:,}"),
                ("metadata offset", f"{own.committed.offset:,}"),
                ("not durable yet", f"{max(0, own.decided.offset - own.committed.offset):,}"),
                ("elections since its start", f"{own.elections:,}"),
                ("not led by the preferred replica", f"{counts.not_preferred:,}"),
                ("recovering after an unclean election", number_of(counts.recovering)),
                ("metadata.version", f"{self._image.metadata_version}"),
            ),
            self._voters(own.log),
        )

    def _voters(self, log: Any) -> Any:
        """Of several, as the leader knows them."""
        state = log.raft.quorum.state if log.has_begun else None
        if log.is_alone or not isinstance(state, LeaderState):
            return ""
        table = Table("Voters", ("node", ""), ("metadata end", "n"), ("behind", "n"), ("heard", ""))
        now = self._view.now()
        voters, _ = state.described(now.now_ms)
        rows = [
            table.row(f"{each.key.id}", *_standing(each, log, now))
            for each in sorted(voters, key=lambda each: each.key.id)
        ]
        return table.whole(rows)

    # log directories

    def directories(self, found: list[Directory]) -> Any:
        if not found:
            return ""
        table = Table(
            "Log directories of this node",
            ("directory", ""),
            ("state", ""),
            ("replicas", "n"),
            ("stored", "n"),
            ("disk free", "n"),
            ("of", "n wide"),
        )
        rows = (
            table.row(
                tags.code(short(each.path)),
                tags.span("offline", **{"class": "bad"})
                if each.error
                else tags.span("online", **{"class": "good"}),
                f"{each.logs:,}",
                byte_text(each.size),
                byte_text(each.free),
                byte_text(each.total),
            )
            for each in found
        )
        return tags.section(tags.h2("Log directories"), table.whole(list(rows)))

    # groups

    def groups(self, groups: Groups) -> Any:
        if self._view.replicas is None:
            return ""
        if not groups.total:
            text = "This broker coordinates no group now; the other brokers' pages show theirs."
            return tags.section(tags.h2("Groups"), tags.p(text, **{"class": "soft"}))
        wanted = self._wanted
        table = Table(
            f"{plural(groups.matching, 'group')} that this broker coordinates"
            + (f" with “{short(wanted.group)}” in the name" if wanted.group else ""),
            ("group", ""),
            ("state", ""),
            ("members", "n"),
            ("protocol", "wide"),
            ("coordinator", "n wide"),
            ("lag", "n"),
        )
        rows = (self._group(table, row) for row in groups.rows)
        return tags.section(
            tags.h2("Groups"),
            self._filter("group", "Groups with this in their name", wanted.group),
            table.whole(self._pauses.rows(rows)),
            pages(
                wanted.groups_from,
                len(groups.rows),
                groups.matching,
                lambda first: wanted.query(groups_from=first),
            ),
            id="groups",
        )

    def _group(self, table: Table, row: GroupRow) -> Tag:
        kind = {"Stable": "good", "Empty": "soft", "Dead": "soft"}.get(row.state, "warn")
        lag = "–" if not row.known else f"{row.lag:,}"
        if 0 < row.known < row.offsets:
            lag += f" (of {row.known:,} of {row.offsets:,} partitions)"
        return table.row(
            tags.span(short(row.name) or "(empty name)", **{"class": "id"}),
            tags.span(row.state, **{"class": kind}),
            f"{row.members:,}",
            short(row.protocol) or "–",
            str(self._parts.node_id),
            lag,
        )

    # topics

    def topics(self) -> Tag:
        state, wanted = self._state, self._wanted
        table = Table(
            plural(state.matching, "topic")
            + (f" with “{short(wanted.topic)}” in the name" if wanted.topic else ""),
            ("topic", ""),
            ("partitions", "n"),
            ("replicas", "n"),
            ("state", "text"),
        )
        rows = (self._topic(table, row) for row in state.rows)
        return tags.section(
            tags.h2("Topics"),
            self._filter("topic", "Topics with this in their name", wanted.topic),
            table.whole(self._pauses.rows(rows))
            if state.rows
            else tags.p("no topic" + (" with that name" if wanted.topic else " yet")),
            pages(
                wanted.topics_from,
                len(state.rows),
                state.matching,
                lambda first: wanted.query(topics_from=first) + "#topics",
            ),
            id="topics",
        )

    def _topic(self, table: Table, row: TopicRow) -> Tag:
        fewest, most = row.fewest_replicas, row.most_replicas
        return table.row(
            link(("topics", row.name), short(row.name)),
            f"{row.partitions:,}",
            str(fewest) if fewest == most else f"{fewest} to {most}",
            _state_of(row),
        )

    def _filter(self, name: str, label: str, value: str) -> Tag:
        # What else the address chooses stays; the page begins again.
        others = {
            "topic": {"group": self._wanted.group},
            "group": {"topic": self._wanted.topic},
        }[name] | {"refresh": self._wanted.refresh}
        return tags.form(
            tags.label(label, **{"for": f"filter-{name}"}),
            tags.input(
                type="search",
                name=name,
                id=f"filter-{name}",
                value=value,
                maxlength=str(_LONGEST_FILTER),
            ),
            *(
                tags.input(type="hidden", name=key, value=str(other))
                for key, other in others.items()
                if other
            ),
            tags.button("Show", type="submit"),
            *([tags.a("all", href=self._wanted.query(**{name: ""}))] if value else []),
            method="get",
            action="/",
            role="search",
        )


def _link_of(trouble: Trouble) -> Any:
    """Where there is more about it."""
    if trouble.topic is not None:
        return explain_link(trouble.topic, trouble.partition, "explain")
    if trouble.broker is not None:
        return tags.a(f"broker {trouble.broker}", href=f"#broker-{trouble.broker}")
    return ""


def _state_of(row: TopicRow) -> Any:
    found = [
        tags.span(f"{count:,} {what}", **{"class": kind})
        for count, what, kind in (
            (row.offline, "without a leader", "bad"),
            (row.under_minimum, f"below {MIN_ISR}", "bad"),
            (row.out_of_sync, "out of sync", "warn"),
            (row.moving, "moving", "soft"),
        )
        if count
    ]
    if not found:
        return tags.span("in sync", **{"class": "good"})
    spaced: list[Any] = []
    for each in found:
        spaced += [", ", each]
    return spaced[1:]
