"""A request's costs on its client's quotas, and how long the client waits for it.

Owns `Metered`, which a request has while there are quotas, and `charge`, which every answer passes
then.

1. The wait is the longest that one of the quotas gives. It is in the answer, which leaves at once;
   then the connection is not read from for so long (KIP-219).
2. Produce and AppendMirrored cost their request's bytes, a fetch its answer's: a fetch beyond the
   quota is answered without records, costs nothing, and leaves its session as it was.
3. Any request costs the time that the broker's thread worked on it until its answer was there, but
   a Produce with acks=0 only its bytes. Sending the answer costs no time.
4. Exempt is what nodes of the cluster send: followers' fetches, markers, rows with
   `cluster_action`; and what comes before a connection's authentication: it has no user yet.
5. A forwarded request is charged by the controller as well; its broker makes the client wait. On a
   controller's listener no client that may act as a broker is made to wait.
6. What is refused because its client may not act as a node is not exempt.

Source: Kafka's `KafkaApis`, `RequestHandlerHelper`, `ControllerApis`; KIP-13, KIP-124, KIP-219,
KIP-599. Not here: the quotas (`security/quota`), the wait (`net/connection.py`).
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any

from twisted_broker.security.acl import Operation
from twisted_broker.security.quota.client_quota_manager import NO_MUTATION_QUOTA, MutationQuota

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted_broker.api.context import RequestContext
    from twisted_broker.api.dispatch import BoundRoute, Dispatcher
    from twisted_broker.security.quota.client_quota_manager import ClientQuotaManager

_INT32 = Struct(">i")
_PRODUCE, _FETCH, _WRITE_TXN_MARKERS, _APPEND_MIRRORED = 0, 1, 27, 30_000
# of a fetch's answer besides its records: the fields of the whole, those of each partition
_ANSWER_BYTES, _PARTITION_BYTES = 20, 50


class Metered:
    """The costs of one request of `size` bytes. `began`: when the thread took it up last.
    `is_no_node`: its client was denied to act as a node of the cluster.
    """

    __slots__ = (
        "_used",
        "began",
        "is_charged",
        "is_forwarded",
        "is_no_node",
        "mutations",
        "size",
        "wait_ms",
    )

    def __init__(self, size: int, began: float, is_forwarded: bool = False) -> None:
        self.size = size
        self.began = began
        self.is_forwarded = is_forwarded
        self.is_charged = self.is_no_node = False
        self.wait_ms = 0
        self.mutations: MutationQuota = NO_MUTATION_QUOTA
        self._used = 0.0

    def pause(self, now: float) -> None:
        """The request waits: the thread works on others."""
        self._used += now - self.began
        self.began = now

    def used(self, now: float) -> float:
        """Seconds that the thread has worked on it."""
        return self._used + now - self.began


def charge(
    dispatcher: Dispatcher, bound: BoundRoute, context: RequestContext, response: Any
) -> Any:
    """Charges a request, once. Returns the answer with the client's wait, which begins."""
    metered = context.metered
    assert metered is not None
    route, on_controller = bound.route, bound.on_controller
    if metered.is_charged:
        bound.times.all.throttled_ms += metered.wait_ms
        metered.wait_ms = 0
        return response
    metered.is_charged = True
    if not metered.is_no_node and (
        route.cluster_action
        or route.api_key == _WRITE_TXN_MARKERS
        or (on_controller and route.api_key == _FETCH)
    ):
        return response
    now_ms = context.broker.runtime.now_ms()
    wait_ms = 0
    if response is not None or route.api_key != _PRODUCE:
        wait_ms = _of_time(dispatcher, context, metered, now_ms)
    if route.api_key in (_PRODUCE, _APPEND_MIRRORED):
        wait_ms = max(
            wait_ms, _charged(context, dispatcher.quotas.produce, metered.size, now_ms, wait_ms)
        )
    mutations_ms = metered.mutations.throttle_ms(now_ms)
    if mutations_ms > wait_ms:
        wait_ms = mutations_ms
        _note(context, dispatcher.quotas.controller_mutation, wait_ms, now_ms)
    if route.forward and not on_controller and bound.has_throttle_time:
        # The controller's answer, passed on: it has the wait that the controller saw.
        wait_ms = max(wait_ms, getattr(response, "throttle_time_ms", 0))
    if wait_ms > 0:
        bound.times.all.throttled_ms += wait_ms
        _set_wait(bound, response, wait_ms)
        if (
            context.connection is not None
            and not metered.is_forwarded
            # A broker sends what its clients wait for over the same connection.
            and not (on_controller and context.may_on_cluster(Operation.CLUSTER_ACTION))
        ):
            context.connection.throttle(wait_ms)
    return response


def fetch_wait(context: RequestContext, sizes: list[int]) -> int:
    """For how many ms a consumer is to wait, whose fetch found so many bytes of each partition:
    above 0, it gets none of them, and they cost nothing.
    """
    metered, quotas = context.metered, context.broker.quotas
    assert metered is not None
    metered.is_charged = True
    now_ms = context.broker.runtime.now_ms()
    size = _ANSWER_BYTES + _PARTITION_BYTES * len(sizes) + sum(sizes)
    time_ms = _of_time(context.dispatcher, context, metered, now_ms)
    wait_ms = _charged(context, quotas.fetch, size, now_ms, time_ms)
    if max(time_ms, wait_ms) > 0 and quotas.fetch.enabled:
        user, client_id = _client(context)
        quotas.fetch.record_no_throttle(user, client_id, -size, now_ms)
    metered.wait_ms = wait_ms = max(time_ms, wait_ms)
    if wait_ms > 0 and context.connection is not None:
        context.connection.throttle(wait_ms)
    return wait_ms


def most_of_fetch(context: RequestContext, most: int) -> int:
    """The bytes that one fetch may read: more than a consumer's quota gives in its windows would
    never be sent.
    """
    user, client_id = _client(context)
    return int(min(most, context.broker.quotas.fetch.most_in_window(user, client_id)))


def permits(context: RequestContext, strict_from: int) -> Callable[[str, int], None]:
    """`take(topic, partitions)` charges the client's quota of mutations, once for each topic; from
    version `strict_from` on it raises BrokerError(THROTTLING_QUOTA_EXCEEDED) when it is used up.
    """
    if context.metered is None:
        return _free
    user, client_id = _client(context)
    now_ms = context.broker.runtime.now_ms
    quota = context.metered.mutations = (
        context.broker.controller_quotas.controller_mutation.quota_for(
            user, client_id, context.version >= strict_from, now_ms()
        )
    )
    # A decision may be taken again.
    taken: dict[str, Exception | None] = {}

    def take(topic: str, partitions: int) -> None:
        if topic not in taken:
            taken[topic] = None
            try:
                quota.record(partitions, now_ms())
            except Exception as refused:
                taken[topic] = refused
        refusal = taken[topic]
        if refusal is not None:
            raise refusal

    return take


def _free(topic: str, partitions: int) -> None:
    """Without quotas."""


def _client(context: RequestContext) -> tuple[str, str]:
    return context.principal.name, context.client_id or ""


def _of_time(dispatcher: Dispatcher, context: RequestContext, metered: Metered, now_ms: int) -> int:
    quotas = dispatcher.quotas.request
    if not quotas.enabled:
        return 0
    per_cent = 100 * metered.used(dispatcher.seconds())
    return _charged(context, quotas, per_cent, now_ms, 0)


def _charged(
    context: RequestContext, quotas: ClientQuotaManager, value: float, now_ms: int, noted_ms: int
) -> int:
    """The wait; it is noted in the client's sensor if it is longer than `noted_ms`."""
    if not quotas.enabled:
        return 0
    user, client_id = _client(context)
    wait_ms = quotas.record(user, client_id, value, now_ms)
    if wait_ms > noted_ms:
        quotas.throttled(user, client_id, wait_ms, now_ms)
    return wait_ms


def _note(context: RequestContext, quotas: ClientQuotaManager, wait_ms: int, now_ms: int) -> None:
    if quotas.enabled:
        quotas.throttled(*_client(context), wait_ms, now_ms)


def _set_wait(bound: BoundRoute, response: Any, wait_ms: int) -> None:
    parts = getattr(response, "parts", None)
    if parts is not None and bound.throttle_time_first:  # encoded already, with a wait of 0
        for index, part in enumerate(parts):
            if len(part):
                parts[index] = _INT32.pack(wait_ms) + bytes(part[4:])
                break
    elif bound.has_throttle_time and hasattr(response, "throttle_time_ms"):
        response.throttle_time_ms = wait_ms
