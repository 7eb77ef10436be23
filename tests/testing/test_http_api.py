"""`replog cluster`: verbs over HTTP, for programs of any language, and a schema registry."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.testing.test_test_clusters import gone
from twisted_broker.testing.served.command import cluster as command
from twisted_broker.testing.served.schema_registry import SchemaRegistry
from twisted_broker.testing.served.verbs import VERBS, Refused, arguments_of, openapi

pytestmark = pytest.mark.clients
HERE = Path(__file__).parents[2]
JUNIT_NAME = "org.junit.platform:junit-platform-console-standalone:1.14.4"
_MAVEN = Path.home() / ".m2/repository/org/junit/platform/junit-platform-console-standalone"
JUNIT = sorted(_MAVEN.glob("1.*/*.jar"))
COMMAND = [sys.executable, "-m", "twisted_broker.testing.served"]


class Api:
    """Of one cluster."""

    def __init__(self, *options: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None and self.process.stdin is not None
        self.where = json.loads(self.process.stdout.readline())

    def ask(self, path: str, body: Any = None, method: str = "POST", **headers: str) -> Any:
        """Status and content."""
        content = None if method == "GET" else json.dumps(body or {})
        connection = HTTPConnection(self.where["url"].removeprefix("http://"), timeout=40)
        with closing(connection):
            sent = {"Content-Type": "application/json", **headers}
            connection.request(method, path, content, sent)
            answer = connection.getresponse()
            return answer.status, json.load(answer)

    def verb(self, name: str, **body: Any) -> Any:
        status, found = self.ask(f"/v1/{name}", body)
        assert status == 200, found
        return found

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    made = Api("--brokers", "3", "--topic", "orders:1", "--set", "min.insync.replicas=2")
    yield made
    made.close()


def test_records_faults_and_time(api: Api) -> None:
    assert api.ask("/v1/cluster", method="GET") == (200, api.where)
    records = ["one", {"key": "k", "value_base64": "/w=="}, {"value": "3", "headers": {"a": "b"}}]
    assert api.verb("produce", topic="orders", records=records) == [[0, 0], [0, 1], [0, 2]]
    found = api.verb("records", topic="orders", at_least=3)
    assert [(each["key"], each["value"], each["value_base64"]) for each in found] == [
        (None, "one", "b25l"),
        ("k", None, "/w=="),
        (None, "3", "Mw=="),
    ]
    assert found[2]["headers"] == {"a": "b"}
    before = api.verb("snapshot")
    old = api.verb("leader", topic="orders", partition=0)
    api.verb("kill", node=old)
    assert any("leads" in each for each in api.verb("advance", by="10s"))
    changed = {"what": "leader", "topic": "orders", "partition": 0, "is": "!=", "value": old}
    api.verb("wait_until", condition=changed, within="10s")
    fault = api.verb("lose_answer", api="Produce", topic="orders", times=1)
    producer = Producer({"bootstrap.servers": api.where["bootstrap"], "log_level": 0})
    producer.produce("orders", b"again")
    assert producer.flush(20) == 0
    api.verb("wait_for_hits", fault=fault)
    assert api.verb("hits", fault=fault) == 1
    assert api.verb("anomalies", kind="lost", topic="orders") == []
    (repeated,) = api.verb("anomalies", kind="repeated", topic="orders")
    assert "is 2 times in partition 0" in repeated  # it is not idempotent
    assert len(api.verb("requests", api="Produce")) >= 2
    api.verb("restore", snapshot=before)
    assert len(api.verb("records", topic="orders")) == 3
    assert api.verb("leader", topic="orders", partition=0) == old
    producer.produce("orders", b"on")
    assert producer.flush(20) == 0


def test_what_cannot_be_is_said_with_what_can(api: Api) -> None:
    status, found = api.ask("/v1/kil", {})
    assert status == 404 and "there are advance, anomalies" in found["error"]
    status, found = api.ask("/v1/kill", {"nod": 1})
    assert (status, found) == (400, {"error": "kill has no field 'nod': its fields are node"})
    status, found = api.ask("/v1/kill", {"node": 7})
    assert status == 409 and found["error"].startswith("there is no broker 7: there are 1, 2, 3")
    never = {"what": "records", "topic": "orders", "is": ">=", "value": 10**6}
    status, found = api.ask("/v1/wait_until", {"condition": never, "within": "50ms"})
    assert status == 504 and "it is" in found["error"]
    status, found = api.ask("/v1/fail", {"api": "Produce", "error": "NOT_LEADER"})
    assert status == 409 and "NOT_LEADER_OR_FOLLOWER" in found["error"]
    status, found = api.ask("/nothing", method="GET")
    assert status == 404


def test_pages_of_other_sites_can_do_nothing(api: Api) -> None:
    status, found = api.ask("/v1/kill", {"node": 1}, **{"Content-Type": "text/plain"})
    assert status == 403 and found["error"] == "a body is of Content-Type: application/json"
    assert api.ask("/v1/kill", {"node": 1}, Host="evil.example")[0] == 403


def test_calls_do_not_wait_for_each_other(api: Api) -> None:
    waits = {"what": "records", "topic": "later", "is": ">=", "value": 1}
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(api.verb, "wait_until", condition=waits, within="30s")
        api.verb("produce", topic="later", records=["now"])
        assert waiting.result(20) is None


def test_the_page_shows_what_each_replica_has(api: Api) -> None:
    """All of it first, then what changes, from before anybody looked on."""
    api.verb("produce", topic="shown", records=["one"])
    api.verb("drop_connections", one="client", other=1)
    with closing(HTTPConnection(api.where["url"].removeprefix("http://"), timeout=20)) as page:
        for path, word in (("/", b'<script src="page.js">'), ("/page.js", b"EventSource")):
            page.request("GET", path)
            answer = page.getresponse()
            assert answer.status == 200 and word in answer.read()
            assert "script-src 'self'" in (answer.getheader("content-security-policy") or "")
        page.request("GET", "/v1/events")
        events = page.getresponse()
        before = json.loads(events.readline().removeprefix(b"data: "))
        assert before["whole"] and "shown" not in {e["topic"] for e in before["partitions"]}
        found: dict[str, Any] = {}
        while "shown" not in found:
            line = events.readline()
            if line.startswith(b"data: {"):
                change = json.loads(line.removeprefix(b"data: "))
                # Another test of this cluster restored a snapshot: that process tells all of it.
                before = change if change["whole"] else before
                found = {each["topic"]: each for each in change["partitions"]}
        shown = found["shown"]
        leader = shown["leader"]
        assert shown["isr"] == [1, 2, 3]
        assert {each["broker"]: each["leads"] for each in shown["replicas"]} == {
            node: node == leader for node in (1, 2, 3)
        }
        assert [each["end"] for each in shown["replicas"] if each["leads"]] == [1]
        assert {each["node"]: each["state"] for each in before["machines"]} == dict.fromkeys(
            (1, 2, 3, 100), "runs"
        )
        other = leader % 3 + 1
        api.verb("cut_link", one=leader, other=other, one_way=True)
        api.verb("freeze", node=other)
        seen: dict[str, Any] = {}
        told: list[str] = []
        while len(told) < 2 or not any(e["state"] == "frozen" for e in seen.get("machines", ())):
            line = events.readline()
            if line == b"event: said\n":
                told.append(json.loads(events.readline().removeprefix(b"data: ")))
            elif line.startswith(b"data: "):
                change = json.loads(line.removeprefix(b"data: "))
                assert not change["whole"]
                seen |= change
        assert told[1] == f'freeze {{"node": {other}}}'
        assert [(each["from"], each["to"], each["cut"]) for each in seen["links"]] == [
            (f"broker-{leader}", f"broker-{other}", True)
        ]
    api.verb("thaw", node=other)
    api.verb("heal_link", one=leader, other=other)


def test_the_document_is_of_the_table_and_is_kept() -> None:
    document = openapi()
    assert set(document["paths"]) == {
        f"/v1/{name}" for name in (*VERBS, "cluster", "events", "state")
    }
    kept = json.loads((HERE / "docs/openapi.json").read_text())
    assert kept == json.loads(json.dumps(document)), "make docs writes docs/openapi.json"


def test_every_verb_takes_what_its_document_says() -> None:
    example: dict[str, Any] = {
        "text": "t", "integer": 1, "number": 0.5, "boolean": True, "duration": "1s",
        "machine": "client", "object": {}, "records": ["r"], "texts": ["a"],
        "positions": [["t", 0, 1]],
    }  # fmt: skip
    condition = {"what": "in_sync", "is": "==", "value": True}
    for verb in VERBS.values():
        body = {field.name: example[field.kind] for field in verb.fields}
        if "condition" in body:
            body["condition"] = condition
        found = arguments_of(verb, body)
        assert len(found) == len(verb.fields) + len(verb.given)
        for field in verb.fields:
            with pytest.raises(Refused, match=field.name):
                arguments_of(verb, {**body, field.name: object()})


def test_confluents_client_and_serializer(api: Api) -> None:
    client = SchemaRegistryClient({"url": api.where["url"]})
    text = json.dumps(
        {"type": "record", "name": "Order", "fields": [{"name": "title", "type": "string"}]}
    )
    context = SerializationContext("orders", MessageField.VALUE)
    serialized = AvroSerializer(client, text)({"title": "book"}, context)
    assert serialized is not None and serialized[:5] == b"\x00\x00\x00\x00\x01"
    assert AvroDeserializer(client)(serialized, context) == {"title": "book"}
    assert client.get_subjects() == ["orders-value"]
    number = client.register_schema("a/b", Schema('"string"', "AVRO"))
    assert client.get_latest_version("a/b").schema_id == number == 2
    assert client.get_versions("a/b") == [1]
    assert client.set_compatibility("a/b", "NONE") == {"compatibility": "NONE"}
    with pytest.raises(SchemaRegistryError, match="compares no schemas"):
        client.set_compatibility("a/b", "BACKWARD")
    with pytest.raises(SchemaRegistryError, match="not found"):
        client.get_latest_version("nobody")


def test_a_registry_gives_no_number_twice() -> None:
    registry = SchemaRegistry()
    one, other = {"schema": '"int"'}, {"schema": ' "string"'}
    assert registry.answer("POST", ["subjects", "s", "versions"], one)[1]["id"] == 1
    assert registry.answer("POST", ["subjects", "s", "versions"], other)[1]["version"] == 2
    assert registry.answer("POST", ["subjects", "s"], {"schema": '"string"'})[1]["id"] == 2
    assert registry.answer("DELETE", ["subjects", "s", "versions", "latest"], {}) == (200, 2)
    assert registry.answer("POST", ["subjects", "s", "versions"], other)[1]["version"] == 3
    assert registry.answer("DELETE", ["subjects", "s"], {}) == (200, [1, 3])
    assert registry.answer("GET", ["subjects"], {}) == (200, [])
    assert registry.answer("GET", ["subjects", "s", "versions"], {})[0] == 404
    assert registry.answer("POST", ["subjects", "t", "versions"], one)[1]["id"] == 1
    assert registry.answer("GET", ["schemas", "ids", "1", "subjects"], {}) == (200, ["t"])
    assert registry.answer("GET", ["schemas", "ids", "x"], {})[0] == 404
    assert registry.answer("POST", ["subjects", "t", "versions"], {})[0] == 422


def test_it_ends_with_its_input_and_after_its_time() -> None:
    ends = Api()
    (child,) = (int(each) for each in children(ends.process.pid))
    ends.close()
    assert ends.process.returncode == 0 and gone(child, 10)
    done = subprocess.run([*COMMAND, "--ttl", "10ms"], stdin=subprocess.DEVNULL, timeout=30)
    assert done.returncode == 0
    wrong = CliRunner().invoke(command, ["--set", "x"])
    assert wrong.exit_code == 2 and "takes NAME=VALUE" in wrong.output


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@pytest.mark.more
@pytest.mark.skipif(
    not (shutil.which("java") and os.environ.get("KAFKA_JARS")), reason="no JDK, no kafka-clients"
)
def test_java(api: Api) -> None:
    source = HERE / "examples/other_languages/OrdersTest.java"
    jars = f"{os.environ['KAFKA_JARS']}/*"
    done = subprocess.run(
        ["java", "-cp", jars, str(source), api.where["url"], api.where["bootstrap"]],
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("passed\n")


@pytest.mark.more
@pytest.mark.skipif(
    not (shutil.which("javac") and os.environ.get("KAFKA_JARS")), reason="no JDK, no kafka-clients"
)
@pytest.mark.skipif(not JUNIT, reason=f"no JUnit: mvn dependency:get -Dartifact={JUNIT_NAME}")
def test_junit_5(tmp_path: Path) -> None:
    sources = map(str, (HERE / "examples/other_languages").glob("Orders*Test.java"))
    jars = f"{os.environ['KAFKA_JARS']}/*"
    classes = f"{tmp_path}{os.pathsep}{jars}"
    built = ["javac", "-d", str(tmp_path), "-cp", f"{JUNIT[-1]}{os.pathsep}{jars}", *sources]
    done = subprocess.run(built, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    console = "org.junit.platform.console.ConsoleLauncher"
    path = f"{JUNIT[-1]}{os.pathsep}{classes}"
    done = subprocess.run(
        ["java", "-cp", path, console, "execute", "--select-class", "OrdersJUnit5Test"],
        capture_output=True,
        text=True,
        timeout=90,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 tests successful" in done.stdout


@pytest.mark.skipif(not shutil.which("node"), reason="no Node")
def test_node(api: Api) -> None:
    source = HERE / "examples/other_languages/orders.test.mjs"
    done = subprocess.run(
        ["node", "--test", str(source)],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"KAFKA_TEST_URL": api.where["url"]},
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("go"), reason="no Go")
def test_go(api: Api, tmp_path: Path) -> None:
    source = shutil.copy(HERE / "examples/other_languages/orders_test.go", tmp_path)
    done = subprocess.run(
        ["go", "test", source],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"KAFKA_TEST_URL": api.where["url"]},
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("rustc"), reason="no Rust")
def test_rust(api: Api, tmp_path: Path) -> None:
    source = HERE / "examples/other_languages/orders.rs"
    made = tmp_path / "orders"
    subprocess.run(
        ["rustc", "--edition", "2021", "--test", "-o", made, source], check=True, timeout=300
    )
    done = subprocess.run(
        [made],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"KAFKA_TEST_URL": api.where["url"]},
    )
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


def shell_lines() -> list[tuple[str, str]]:
    """Each command of "Other languages" with curl, and what the page says that it prints."""
    page = (HERE / "docs/TESTING.md").read_text().partition("## Other languages")[2]
    text = page.partition("\n## ")[0]
    lines = [line.removeprefix("    ") for line in text.splitlines() if line.startswith("    ")]
    found: list[tuple[str, str]] = []
    for line in lines:
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), ""))
        elif found and found[-1][0].endswith("\\"):
            found[-1] = (f"{found[-1][0][:-1]}{line.strip()}", "")
        else:
            found[-1] = (found[-1][0], found[-1][1] + line)
    return [each for each in found if "curl" in each[0]]


def test_verbs_are_commands(api: Api) -> None:
    def run(*words: str) -> tuple[int, str]:
        url = ["--url", api.where["url"]]
        found = CliRunner().invoke(command, [*words, *url])
        return found.exit_code, found.output

    assert run("make-topic", "shell", "--partitions", "2") == (0, "2\n")
    assert run("produce", "shell", '["one"]') == (0, "[[0, 0]]\n")
    status, number = run("fail", "NOT_ENOUGH_REPLICAS", "--api", "Produce", "--times", "1")
    assert status == 0 and run("lift", number.strip()) == (0, "null\n")
    status, said = run("kill", "7")
    assert status == 1 and "there is no broker 7" in said
    status, said = run("kill", "x")
    assert status == 1 and "node is of type integer, not 'x'" in said
    assert run("kil", "1")[0] == 2
    nobody = CliRunner().invoke(command, ["kill", "1", "--url", "http://127.0.0.1:1"])
    assert nobody.exit_code == 1 and "no cluster answers at" in nobody.output


@pytest.mark.skipif(not shutil.which("curl"), reason="no curl")
def test_the_lines_of_the_page() -> None:
    """As they stand there, one after the other, and they print what it says."""
    own = Api("--brokers", "3", "--topic", "orders:1")
    try:
        assert len(shell_lines()) >= 4
        for command, said in shell_lines():
            printed = subprocess.run(
                ["sh", "-c", command],
                capture_output=True,
                text=True,
                timeout=60,
                env=os.environ | {"URL": own.where["url"]},
            ).stdout
            shown = said.removesuffix('..."}').rstrip()
            assert printed.startswith(shown), (command, printed)
            assert not shown.startswith('{"error"') or printed.startswith('{"error"'), command
    finally:
        own.close()
