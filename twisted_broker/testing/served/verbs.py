"""The verbs of a cluster over HTTP: one table.

Owns `VERBS`, `arguments_of` (the body of a request, checked) and `openapi`, the document.

1. Each verb is `POST /v1/NAME` with one JSON object; an unknown field is refused with the right
   ones.
2. Durations are `"10s"`, `"500ms"`, `"2m"`, or a number of seconds.
3. Keys and values of records are text, or bytes in base64 (`value_base64`).

Pure. Source: our own. Not here: who answers (`http_api.py`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from twisted_broker import __version__
from twisted_broker.testing.conditions import check
from twisted_broker.testing.handles import in_seconds


class Refused(ValueError):
    """The body of a request cannot be; `str()` says why."""


class Field(NamedTuple):
    """Of a verb's body. `kind`: of `_KINDS`; `default`: `...` where it must be given."""

    name: str
    kind: str
    about: str
    default: Any = None
    goes_as: str = ""
    """the name that the call has for it; empty: the same"""


class Verb(NamedTuple):
    """`call`: of the cluster's process; `given`: what it is always called with."""

    name: str
    call: str
    about: str
    fields: tuple[Field, ...] = ()
    given: Mapping[str, Any] = {}


_KINDS: dict[str, tuple[tuple[type, ...], dict[str, Any]]] = {
    "text": ((str,), {"type": "string"}),
    "integer": ((int,), {"type": "integer"}),
    "number": ((int, float), {"type": "number"}),
    "boolean": ((bool,), {"type": "boolean"}),
    "duration": (
        (str, int, float),
        {"oneOf": [{"type": "string", "example": "10s"}, {"type": "number"}]},
    ),
    "machine": ((int, str), {"oneOf": [{"type": "integer"}, {"enum": ["client"]}]}),
    "object": ((dict,), {"type": "object"}),
    "records": ((list,), {"type": "array", "items": {"$ref": "#/components/schemas/Record"}}),
    "texts": (
        (str, list),
        {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
    ),
    "positions": (
        (list,),
        {
            "type": "array",
            "items": {"type": "array", "prefixItems": [{"type": "string"}, {}, {}]},
            "example": [["orders", 0, 7]],
        },
    ),
}

_TOPIC = Field("topic", "text", "a topic's name", ...)
_PARTITION = Field("partition", "integer", "its number", ...)
_WITHIN = Field("within", "duration", "how long it may take", 30.0)
_NODE = Field("node", "integer", "a broker's id; 100: the controller of several", ...)
_GROUP = Field("group", "text", "a group's name", ..., "name")
_FAULT = Field("fault", "integer", "what the fault's verb answered", ..., "number")
_ENDS = (
    Field("one", "machine", 'a machine\'s id, or "client": all clients', ...),
    Field("other", "machine", "the other end", ...),
)
_ON_HEAL = Field("on_heal", "text", "what it held: deliver it, or reset its connections")
_WHERE = (
    Field("api", "texts", "Kafka's name, or several; left out: all"),
    Field("broker", "integer", "only at this one"),
    Field("topic", "text", "only of this one"),
    Field("partition", "integer", "only of this one"),
    Field("group", "text", "only of this one"),
    Field("transactional_id", "text", "only of this one"),
    Field("client_id", "text", "only of this one"),
    Field("times", "integer", "so many requests; left out: until it is lifted"),
    Field("skip", "integer", "so many pass before"),
    Field("probability", "number", "of each request to be struck"),
    Field("seed", "integer", "of the probability"),
)


def _requests(action: str, about: str, *more: Field) -> Verb:
    return Verb(action, "strike_requests", about, (*more, *_WHERE), {"action": action})


def _disk(verb: str, about: str, *more: Field) -> Verb:
    return Verb(f"{verb}_disk", "strike_disk", about, (_NODE, *more), {"verb": verb})


_LATER = Field("by", "duration", "how much later", ..., "seconds")

VERBS: dict[str, Verb] = {
    verb.name: verb
    for verb in (
        Verb(
            "make_topic",
            "make_topic",
            "Makes a topic where it is missing; how many partitions it has.",
            (
                _TOPIC._replace(goes_as="name"),
                Field("partitions", "integer", "how many"),
                Field("replicas", "integer", "of each partition"),
                Field("settings", "object", "Kafka's, of the topic"),
                _WITHIN,
            ),
        ),
        Verb(
            "produce",
            "produce",
            "Writes records with acks=all; partition and offset of each.",
            (
                _TOPIC,
                Field("records", "records", "what to write", ...),
                Field("transaction", "text", "commit, abort or open; left out: there is none"),
                _WITHIN,
            ),
        ),
        Verb(
            "records",
            "records",
            "What is in a topic, by partition and offset; once there are `at_least` so many.",
            (
                _TOPIC,
                Field("at_least", "integer", "waits for so many", 0),
                Field("isolation", "text", "read_committed, or not", "read_uncommitted"),
                _WITHIN._replace(default=10.0),
            ),
        ),
        Verb("leader", "leader", "The id of the broker that leads.", (_TOPIC, _PARTITION, _WITHIN)),
        Verb("group", "group", "State, members, offsets and lag of a group.", (_GROUP, _WITHIN)),
        Verb(
            "set_offsets",
            "set_offsets",
            "Commits offsets for a group without members.",
            (_GROUP, Field("positions", "positions", "topic, partition, offset", ...), _WITHIN),
        ),
        Verb(
            "wait_until",
            "wait_until",
            "Ends when a condition holds at every broker that runs; else 504, with the reason.",
            (Field("condition", "object", "see `Condition`", ...), _WITHIN),
        ),
        Verb("kill", "kill", "Ends a process as SIGKILL does.", (_NODE,)),
        Verb(
            "crash",
            "crash",
            "A machine loses power.",
            (
                _NODE,
                Field("lose_unsynced", "boolean", "what was not synced is lost", True),
                Field("torn", "boolean", "some of that only", False),
            ),
        ),
        Verb("freeze", "freeze", "Nothing of it runs, as by SIGSTOP.", (_NODE,)),
        Verb("thaw", "thaw", "It goes on; it is in the ISRs again.", (_NODE, _WITHIN)),
        Verb("go_stale", "go_stale", "It does not follow the metadata.", (_NODE, _WITHIN)),
        Verb("catch_up", "catch_up", "It follows the metadata again.", (_NODE, _WITHIN)),
        Verb("fence", "fence", "Its session with the controller is over.", (_NODE, _WITHIN)),
        Verb("unfence", "unfence", "The controller hears of it again.", (_NODE, _WITHIN)),
        Verb("stop", "stop_broker", "A controlled shutdown.", (_NODE, _WITHIN)),
        Verb("restart", "restart_broker", "Starts it again, or anew.", (_NODE, _WITHIN)),
        Verb(
            "cut_link",
            "cut_link",
            "What is sent over it is held.",
            (
                *_ENDS,
                Field("one_way", "boolean", "only from `one` to `other`", False),
                _ON_HEAL._replace(default="deliver"),
            ),
        ),
        Verb(
            "delay_link",
            "delay_link",
            "All arrives later.",
            (*_ENDS, _LATER, Field("jitter", "duration", "up to so much more", 0.0)),
        ),
        Verb(
            "narrow_link",
            "narrow_link",
            "So much gets over it.",
            (*_ENDS, Field("bytes_per_second", "number", "how much", ...)),
        ),
        Verb("heal_link", "heal_link", "As new; what it held arrives.", (*_ENDS, _ON_HEAL)),
        Verb("drop_connections", "drop_connections", "Resets those that there are.", _ENDS),
        _disk("fill", "No file grows (ENOSPC)."),
        _disk(
            "fail",
            "Calls of a disk raise an error.",
            Field("operation", "text", "any, create, fsync, open, read, remove, ..", ...),
            Field("error", "text", "of the system", "EIO"),
            Field("times", "integer", "so many; left out: all"),
        ),
        _disk(
            "slow",
            "What waits for the disk takes so long.",
            _LATER,
            Field("operation", "text", "fsync, read, remove, .., or any", "any"),
        ),
        _disk("stall", "What waits for the disk waits on."),
        _disk(
            "corrupt",
            "A bit of a batch is flipped.",
            _TOPIC,
            _PARTITION,
            Field("offset", "integer", "of a record in it", ...),
        ),
        Verb("heal_disk", "heal_disk", "As new; its broker runs again.", (_NODE, _WITHIN)),
        _requests(
            "fail",
            "Requests are answered an error; the number of the fault.",
            Field("error", "text", "Kafka's name", ...),
            Field("applied", "boolean", "after the work was done", False),
        ),
        _requests("lose_request", "The connection is reset before the work."),
        _requests("lose_answer", "The connection is reset after the work."),
        _requests("silence", "There is no answer."),
        _requests("delay", "The work begins later.", _LATER),
        _requests("throttle", "That throttle time is answered.", _LATER),
        Verb("heal", "heal", "Heals all that is struck; what it was, a sentence each."),
        Verb("hits", "hits", "How many requests a fault struck.", (_FAULT,)),
        Verb(
            "wait_for_hits",
            "wait_for_hits",
            "Ends when it struck so many.",
            (_FAULT, Field("count", "integer", "how many", 1), _WITHIN),
        ),
        Verb("lift", "lift_fault", "It strikes no more.", (_FAULT,)),
        Verb(
            "advance",
            "advance",
            "Moves the time of all machines on; what came of it, a sentence each.",
            (
                Field("by", "duration", "how much", ..., "seconds"),
                Field("members", "texts", "alive, silent, or the silent ones", "alive"),
            ),
        ),
        Verb(
            "calendar",
            "calendar",
            "The calendar of all machines stands, or runs.",
            (
                Field("how", "text", "fix or run", ...),
                Field("at_ms", "integer", "where it stands; left out: where it is"),
            ),
        ),
        Verb(
            "skew_clock",
            "skew_clock",
            "The calendar of one machine is ahead of the others'.",
            (_NODE, Field("ms", "integer", "by how much, or behind", ...)),
        ),
        Verb(
            "move_leader",
            "move_leader",
            "Another replica leads.",
            (_TOPIC, _PARTITION, Field("to", "integer", "which; left out: another in sync")),
        ),
        Verb(
            "elect_uncleanly",
            "elect_uncleanly",
            "A replica that lives leads, in sync or not.",
            (_TOPIC, _PARTITION, _WITHIN),
        ),
        Verb(
            "rebalance",
            "rebalance",
            "As if a member had joined a group, and left.",
            (Field("group", "text", "a group's name", ...), _WITHIN),
        ),
        Verb(
            "move_coordinator",
            "move_coordinator",
            "Another broker coordinates.",
            (
                Field("group", "text", "this group"),
                Field("transactional_id", "text", "or this id"),
                Field("to", "integer", "which broker"),
            ),
        ),
        Verb(
            "remove_member",
            "remove_member",
            "As if its session had ended.",
            (
                Field("group", "text", "a group's name", ...),
                Field("member", "text", "a client id, or a member id", ...),
            ),
        ),
        Verb("snapshot", "snapshot", "The number of a snapshot of what it is now."),
        Verb(
            "restore",
            "restore",
            "Takes it back to a snapshot; clients go on.",
            (Field("snapshot", "integer", "what `snapshot` answered", ..., "number"),),
        ),
        Verb(
            "drop_snapshot",
            "drop_snapshot",
            "Nobody goes back to it any more.",
            (Field("snapshot", "integer", "what `snapshot` answered", ..., "number"),),
        ),
        Verb(
            "save",
            "save",
            "Writes the files of all machines to a new directory.",
            (Field("directory", "text", "its path, absolute", ...),),
        ),
        Verb(
            "anomalies",
            "anomalies",
            "What clients were told, compared with what is in a topic.",
            (Field("kind", "text", "lost, repeated or reordered", ...), _TOPIC),
        ),
        Verb(
            "requests",
            "exchanges",
            "What clients asked and were answered.",
            (
                Field("api", "text", "only these"),
                Field("topic", "text", "only of this one"),
                Field("group", "text", "only of this one"),
                Field("client_id", "text", "only of this one"),
            ),
        ),
    )
}


def arguments_of(verb: Verb, body: object) -> dict[str, Any]:
    """Of its call. Raises Refused."""
    if not isinstance(body, dict):
        raise Refused("the body is a JSON object")
    known = {field.name: field for field in verb.fields}
    for name in body:
        if name not in known:
            right = ", ".join(known) or "none"
            raise Refused(f"{verb.name} has no field {name!r}: its fields are {right}")
    found = dict(verb.given)
    for name, field in known.items():
        value = body.get(name, field.default)
        if value is ...:
            raise Refused(f"{verb.name} needs {name}: {field.about}")
        if value is None:
            # A rule of requests is refused what is not given; other calls have None for it.
            if verb.call != "strike_requests":
                found[field.goes_as or name] = None
            continue
        found[field.goes_as or name] = _checked(field, value)
    return found


def _checked(field: Field, given: object) -> Any:
    value: Any = given
    types: Any = _KINDS[field.kind][0]
    if not isinstance(given, types) or (isinstance(given, bool) and bool not in types):
        raise Refused(f"{field.name} is of type {field.kind}, not {given!r}")
    if field.kind == "duration":
        try:
            return in_seconds(value)
        except ValueError as error:
            raise Refused(f"{field.name}: {error}") from None
    if field.kind == "records":
        return [_written(each) for each in value]
    if field.name == "condition":
        try:
            check(value)
        except (KeyError, TypeError, ValueError) as error:
            raise Refused(f"condition: {error}") from None
    if field.name == "settings":
        return {name: str(each) for name, each in value.items()}
    return value


_OF_RECORD = ("headers", "key", "key_base64", "partition", "timestamp", "value", "value_base64")


def _written(record: Any) -> dict[str, Any]:
    """As the call has it."""
    if isinstance(record, str):
        record = {"value": record}
    if not isinstance(record, dict) or record.keys() - set(_OF_RECORD):
        raise Refused(f"a record is text, or an object of {', '.join(_OF_RECORD)}: not {record!r}")
    found = {name: record[name] for name in ("partition", "timestamp") if name in record}
    for name in ("key", "value"):
        if f"{name}_base64" in record:
            found[name] = record[f"{name}_base64"]
        elif record.get(name) is not None:
            found[name] = _base64(record[name])
    found["headers"] = [(name, _base64(each)) for name, each in record.get("headers", {}).items()]
    return found


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def answered(verb: Verb, result: Any) -> Any:
    """As JSON has it over HTTP."""
    if verb.name != "records":
        return result
    return [
        {
            **each,
            "key_base64": each["key"],
            "key": _text(each["key"]),
            "value_base64": each["value"],
            "value": _text(each["value"]),
            "headers": {name: _text(value) for name, value in each["headers"]},
        }
        for each in result
    ]


def _text(content: str | None) -> str | None:
    """None also where it is no text."""
    try:
        return None if content is None else base64.b64decode(content).decode()
    except UnicodeDecodeError:
        return None


def openapi() -> dict[str, Any]:
    """The document, version 3.1."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "A Kafka cluster for tests",
            "version": __version__,
            "description": "replog cluster; what the verbs do is in docs/TESTING.md.",
        },
        "paths": {
            "/v1/state": {"get": _operation("state", "What the page shows.")},
            "/v1/events": {"get": _operation("events", "The same, as server-sent events.")},
            "/v1/cluster": {"get": _operation("cluster", "Where it is: bootstrap, brokers, url.")},
            **{
                f"/v1/{verb.name}": {"post": _operation(verb.name, verb.about, verb)}
                for verb in VERBS.values()
            },
        },
        "components": {
            "responses": {
                code: {
                    "description": about,
                    "content": {
                        "application/json": {"schema": {"$ref": "#/components/schemas/Error"}}
                    },
                }
                for code, about in _REFUSALS.items()
            },
            "schemas": {
                "Error": {
                    "type": "object",
                    "properties": {"error": {"type": "string"}},
                    "required": ["error"],
                },
                "Record": {
                    "oneOf": [
                        {"type": "string", "description": "its value"},
                        {
                            "type": "object",
                            "additionalProperties": False,
                            "properties": {
                                name: {"type": "integer" if name in _NUMBERS else "string"}
                                for name in _OF_RECORD
                                if name != "headers"
                            }
                            | {"headers": {"type": "object"}},
                        },
                    ]
                },
            },
        },
    }


_NUMBERS = {"partition", "timestamp"}
_REFUSALS = {
    "400": "the request cannot be",
    "409": "the cluster cannot do it",
    "504": "it did not happen in time",
}


def _operation(name: str, about: str, verb: Verb | None = None) -> dict[str, Any]:
    done = {"description": "it is done", "content": {"application/json": {"schema": {}}}}
    refused = {code: {"$ref": f"#/components/responses/{code}"} for code in _REFUSALS}
    found: dict[str, Any] = {
        "operationId": name,
        "summary": about,
        "responses": {"200": done, **refused},
    }
    if verb is not None:
        properties = {
            field.name: _KINDS[field.kind][1]
            | {"description": field.about}
            | ({} if field.default in (..., None) else {"default": field.default})
            for field in verb.fields
        }
        schema: dict[str, Any] = {
            "type": "object",
            "properties": properties,
            "additionalProperties": False,
        }
        required = [field.name for field in verb.fields if field.default is ...]
        if required:
            schema["required"] = required
        found["requestBody"] = {
            "required": bool(required),
            "content": {"application/json": {"schema": schema}},
        }
    return found


if __name__ == "__main__":
    # A line for each path.
    document = openapi()
    paths = document.pop("paths")
    lines = ",\n".join(f"  {json.dumps(path)}: {json.dumps(at)}" for path, at in paths.items())
    print(f'{json.dumps(document)[:-1]}, "paths": {{\n{lines}\n}}}}')
