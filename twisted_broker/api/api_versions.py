"""ApiVersions (key 18, versions 0-4): what this listener serves, derived from the table.

1. Only what is served on the listener of the request; client telemetry only where
   `replog.client.telemetry` is set. Kafka's brokers serve it without listing it, too.
2. Produce is advertised from version 0 on: librdkafka switches compression off when it is not
   (KAFKA-18659).
3. From version 3 on a client names its software; a name that is not plain text is INVALID_REQUEST
   (KIP-511).
4. A version above the highest is answered in version 0 with UNSUPPORTED_VERSION and the range of
   this API alone.
5. Features: what this node supports and what its cluster has finalized, with the offset of that
   decision. Below version 4 one whose lowest level is 0 is left out: clients of that time cannot
   read it (KAFKA-17492).

Source: Kafka's `ApiVersionManager`, `ApiVersionsRequest`; KIP-35, KIP-511, KIP-584.
"""

from __future__ import annotations

import re

from twisted_broker.api.context import RequestContext
from twisted_broker.api.routes import Route
from twisted_broker.cluster.features import KRAFT_VERSION
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

_API_VERSIONS = 18
_TELEMETRY = (71, 72)
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.\-]*[a-zA-Z0-9])?\Z")


async def api_versions(context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    """Answers at once."""
    if context.version >= 3:
        names = (request.client_software_name, request.client_software_version)
        if not all(map(_SOFTWARE.match, names)):
            raise BrokerError(ErrorCode.INVALID_REQUEST)
        if context.connection is not None:
            context.connection.client_software = names
    routes = context.dispatcher.routes
    if not context.broker.config.boolean("replog.client.telemetry"):
        routes = {key: route for key, route in routes.items() if key not in _TELEMETRY}
    response = ApiVersionsResponse(api_keys=ranges(routes, context.listener.is_controller))
    if context.version >= 3:
        _add_features(context, response)
    return response


def too_new(routes: dict[int, Route], on_controller: bool) -> ApiVersionsResponse:
    """The answer, in version 0, to a version of ApiVersions that is not served."""
    known = ranges({_API_VERSIONS: routes[_API_VERSIONS]}, on_controller)
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=known)


def ranges(routes: dict[int, Route], on_controller: bool) -> list[ApiVersion]:
    """In the order of the keys."""
    found = [(key, routes[key].versions(on_controller)) for key in sorted(routes)]
    return [
        ApiVersion(api_key=key, min_version=versions.min, max_version=versions.max)
        for key, versions in found
    ]


def _add_features(context: RequestContext, response: ApiVersionsResponse) -> None:
    source = context.broker.metadata or context.broker.controller  # a node has one, or both
    if source is None:
        return
    image = source.image
    # No record of the image: the quorum's control records say it. With ZooKeeper there is none.
    levels = {**image.features, KRAFT_VERSION: getattr(source, "kraft_version", 0)}
    supported = sorted(context.broker.features.items())
    response.supported_features = [
        SupportedFeatureKey(name=name, min_version=low, max_version=high)
        for name, (low, high) in supported
        if low > 0 or context.version >= 4
    ]
    response.finalized_features = [
        FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
        for name, level in sorted(levels.items())
        if level
    ]
    response.finalized_features_epoch = max(image.offset, -1)
