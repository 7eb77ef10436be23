"""`python -m twisted_broker.api.permissions > docs/PERMISSIONS.md`: which permission each API asks
for, and in which order, read from the syntax trees of the request functions.

1. Nothing is written down here but what a reader must know besides: a check that is added, moved or
   taken away changes the page.
2. A check whose operation or resource cannot be read raises ValueError: none is left out.

Not here: what ACLs allow (`security/standard_authorizer.py`); whether Kafka asks the same
(`tests/compare/permissions.py`).
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from twisted_broker.api.routes import ROUTES, Route, snake_case

_API = "twisted_broker.api."
# attributes of a context that check, and how many arguments name the operation
_CHECKS = ("may", "may_on_cluster", "may_on_any")
_RESOURCES_OF_KEYS = "GROUP, TRANSACTIONAL_ID"
_HEAD = """# Permissions

Which permission a client needs for which API, in the order in which the broker and the controller
ask. Made from the code (`python -m twisted_broker.api.permissions`); `python -m
tests.compare.permissions HOST:PORT` compares the answers to clients that lack them with Apache
Kafka 4.3.1's.

## Switching it on

    authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
    super.users=User:admin

on every broker and every controller. From then on a client may do what an ACL allows it, and a
super user everything. ACLs are records of the metadata log; `kafka-acls` and any admin client
change and list them:

    kafka-acls --bootstrap-server HOST:PORT --command-config admin.properties --add \\
        --allow-principal User:alice --operation Read --topic orders --group billing

A broker's listeners open when it has the metadata, and so the ACLs. A controller's open before,
for super users only; those that `early.start.listeners` leaves out open once the ACLs are there.

Brokers and controllers are clients of each other: their principal needs ClusterAction on the
cluster, or is a super user. Without either a broker cannot join. On a PLAINTEXT listener every
client is `User:ANONYMOUS`; ACLs can still tell hosts apart.

## The rules

- A matching DENY decides, whatever else matches; else one matching ALLOW is enough; else it is
  denied. With `allow.everyone.if.no.acl.found=true` a resource that no ACL names is open to all.
- A resource is named literally, by a prefix (`--resource-pattern-type prefixed`), or by `*`: all
  of its type. The cluster's name is `kafka-cluster`.
- A principal is `TYPE:NAME`, or `User:*`; a host is an IP address, or `*`. Names of hosts and
  networks are not resolved. An IPv6 address may be written in any form.
- An ALLOW of READ, WRITE, DELETE or ALTER implies DESCRIBE; of ALTER_CONFIGS, DESCRIBE_CONFIGS. A
  DENY implies nothing.
- A change acts on the controller when it is acknowledged, on a broker when it has read that part
  of the metadata log. A hundred thousand ACLs take 50 to 80 MB of each role of a node.

What is denied is a line of the log, `audit denied principal=.. client.id=.. client=.. api=..
operation=.. resource=.. count=.. names=..`, one for each operation on a kind of resource in a
request; so is each change, `audit acl created ..`, `audit acl deleted ..`. Checks in brackets are
not logged: another permission may do instead, or what is not permitted is only left out of a list.

Of one kind (`audit denied`, `audit topic created`, ..) each principal has at most 20 lines a
minute on each node, and then one, `audit denied, more in that minute: node=.. principal=..
count=..`, for the rest. From the 128th principal of a minute on they share 20 lines
(`principal=others`); beyond 20 lines with counts a last one has the sum of the rest. All clients
of a PLAINTEXT listener are one principal.

With `zookeeper.connect` the class is `kafka.security.authorizer.AclAuthorizer`, as on the Java
brokers: the ACLs are those in ZooKeeper, and any broker changes them. The controller's principal
must be one of `super.users`, or have CLUSTER_ACTION.

## The table

`>`: the controller is asked next, with the client's own principal and address, which it believes
only in an Envelope of a node with CLUSTER_ACTION. A check of a topic, group or transactional id is
made for each that the request names, before anything shows whether it exists.

| API | on a broker | on a controller |
|---|---|---|
"""


class Check(NamedTuple):
    """`noted`: a denial is a line of the audit."""

    operation: str
    resource: str
    noted: bool = True

    def __str__(self) -> str:
        text = f"{self.operation} {self.resource}"
        return text if self.noted else f"({text})"


@cache
def _functions(module: ModuleType) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    # Beside a compiled module, too.
    source = Path(str(module.__file__)).with_name(f"{module.__name__.rpartition('.')[2]}.py")
    tree = ast.parse(source.read_text())
    return {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


class _Walk(ast.NodeVisitor):
    """The checks of a function and of those it calls, in the order of their text. `bound`: what its
    parameters are.
    """

    def __init__(self, module: ModuleType, bound: Mapping[str, str], seen: set[str]) -> None:
        self.module, self.bound, self.seen = module, dict(bound), seen
        self.found: list[Check] = []

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr in _CHECKS:
            self.found.append(self._check(function.attr, node))
            return
        target: Callable[..., object] | None = None
        found_in = self.module
        if isinstance(function, ast.Name):
            target = getattr(self.module, function.id, None)
        elif isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            owner = getattr(self.module, function.value.id, None)
            if isinstance(owner, ModuleType):
                found_in, target = owner, getattr(owner, function.attr, None)
        if inspect.isroutine(target):
            # A coroutine that is compiled does not say where it is from.
            module = target.__module__ or found_in.__name__
            if module.startswith(_API):
                self._follow(sys.modules[module], target.__name__, node)

    def _follow(self, module: ModuleType, name: str, node: ast.Call) -> None:
        key = f"{module.__name__}.{name}"
        definition = _functions(module).get(name)
        if definition is None or key in self.seen:
            return
        arguments = [each.arg for each in definition.args.args]
        given = dict(zip(arguments, node.args, strict=False))
        given |= {each.arg: each.value for each in node.keywords if each.arg}
        bound = {}
        for argument, value in given.items():
            meaning = self._meaning(value)
            if meaning:
                bound[argument] = meaning
        inner = _Walk(module, bound, self.seen | {key})
        for statement in definition.body:
            inner.visit(statement)
        self.found += inner.found

    def _meaning(self, node: ast.expr) -> str:
        """The name of an operation or a kind of resource; empty for anything else."""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return node.attr if node.value.id in ("Operation", "ResourceType") else ""
        if isinstance(node, ast.Name):
            if node.id in self.bound:
                return self.bound[node.id]
            return str(getattr(getattr(self.module, node.id, None), "name", ""))
        return ""

    def _check(self, kind: str, node: ast.Call) -> Check:
        operation = self._meaning(node.args[0])
        if kind == "may_on_cluster":
            resource = "CLUSTER"
        else:
            resource = self._meaning(node.args[1])
            if not resource and ast.unparse(node.args[1]) == "resource":
                resource = _RESOURCES_OF_KEYS  # of FindCoordinator's table of key types
        if not operation or not resource:
            raise ValueError(f"{self.module.__name__}: {ast.unparse(node)} cannot be read")
        noted = not any(
            each.arg == "noted" and ast.unparse(each.value) == "False" for each in node.keywords
        )
        return Check(operation, "any " + resource if kind == "may_on_any" else resource, noted)

    def visit_For(self, node: ast.For) -> None:
        """`for operation in (Operation.X, Operation.Y)`: the body once for each."""
        if isinstance(node.target, ast.Name) and isinstance(node.iter, ast.Tuple):
            for each in node.iter.elts:
                self.bound[node.target.id] = self._meaning(each)
                for statement in node.body:
                    self.visit(statement)
            return
        self.generic_visit(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        (first, *_) = node.generators
        if isinstance(first.target, ast.Name) and isinstance(first.iter, ast.Tuple):
            for each in first.iter.elts:
                self.bound[first.target.id] = self._meaning(each)
                self.visit(node.elt)
            return
        self.generic_visit(node)


def checks(route: Route, on_controller: bool) -> list[Check]:
    """What the API asks for there, in order, each once. Raises ValueError."""
    found = [Check("CLUSTER_ACTION", "CLUSTER")] if route.cluster_action else []
    if route.forward and not route.module and not on_controller:
        return found
    walk = _Walk(route.function_module(on_controller), {}, set())
    definition = _functions(walk.module)[snake_case(route.name)]
    for statement in definition.body:
        walk.visit(statement)
    return list(dict.fromkeys(found + walk.found))


def _cell(route: Route, on_controller: bool) -> str:
    if route.versions(on_controller).max < 0:
        return "-"
    text = ", ".join(map(str, checks(route, on_controller)))
    if route.forward and not on_controller:
        text = f"{text} >".strip()
    return text or "none"


def page() -> Iterator[str]:
    """The lines of docs/PERMISSIONS.md."""
    yield _HEAD.rstrip("\n")
    for route in ROUTES:
        cells = [_cell(route, on_controller) for on_controller in (False, True)]
        yield f"| {route.name} ({route.api_key}) | {' | '.join(cells)} |"


if __name__ == "__main__":
    print("\n".join(page()))
