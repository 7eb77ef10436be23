"""DescribeAcls (29), CreateAcls (30), DeleteAcls (31), on a broker; on a controller DescribeAcls
only.

1. DESCRIBE on the cluster to see ACLs, ALTER to change them; the controller checks ALTER, with the
   principal of the client.
2. Without an authorizer: SECURITY_DISABLED, after the permission.
3. A broker answers DescribeAcls from its own image, as it decides by it.

Source: Kafka's `AclApis`. Not here: decisions (`cluster/acl_changes.py`), changes
(`api/controller.py`).
"""

from __future__ import annotations

from twisted_broker.api.context import RequestContext
from twisted_broker.cluster import acl_changes
from twisted_broker.security.acl import Operation
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import acls

# in elements of a request: one step of a decision
_STEP_ELEMENTS = 200


def check_authorizer(context: RequestContext) -> None:
    """Raises BrokerError(SECURITY_DISABLED) where nobody reads ACLs."""
    if not context.broker.config.text("authorizer.class.name"):
        raise BrokerError(
            ErrorCode.SECURITY_DISABLED, "no authorizer is configured: see authorizer.class.name"
        )


async def describe_acls(
    context: RequestContext, request: acls.DescribeAclsRequest
) -> acls.DescribeAclsResponse:
    acl_changes.check_filters([request])
    if not context.may_on_cluster(Operation.DESCRIBE):
        raise BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    check_authorizer(context)
    source = context.broker.metadata or context.broker.controller
    assert source is not None
    resources = await context.in_slices(
        acl_changes.describe_acls(source.image.acls, request), _STEP_ELEMENTS
    )
    return acls.DescribeAclsResponse(resources=resources)


async def create_acls(
    context: RequestContext, request: acls.CreateAclsRequest
) -> acls.CreateAclsResponse:
    """The controller creates them."""
    acl_changes.check_creations(request.creations)
    response: acls.CreateAclsResponse = await context.forwarding.forward(
        context, acls.CreateAclsResponse
    )
    return response


async def delete_acls(
    context: RequestContext, request: acls.DeleteAclsRequest
) -> acls.DeleteAclsResponse:
    """The controller deletes them."""
    acl_changes.check_filters(request.filters)
    response: acls.DeleteAclsResponse = await context.forwarding.forward(
        context, acls.DeleteAclsResponse
    )
    return response
