"""A program of the user's, in virtual time under a seed: `replog simulate`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from textwrap import dedent, indent

import pytest

from twisted_broker.simulation.process_pool import run_all
from twisted_broker.testing.simulated.command import CannotSimulateError, load
from twisted_broker.testing.simulated.controlled import REFUSED_CLIENTS, Controlled
from twisted_broker.testing.simulated.run import Outcome, run_seed

EXAMPLE = Path(__file__).parents[2] / "examples/shop/simulated.py"
SHOP = """
import asyncio
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

CLUSTER = {"brokers": 1, "topics": {"orders": 1, "invoices": 1}}

async def shop(bootstrap):
    consumer = AIOKafkaConsumer(
        "orders", bootstrap_servers=bootstrap, group_id="shop", auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
    await consumer.start()
    await producer.start()
    async for order in consumer:
        BEFORE
        await asyncio.sleep(0.5)
        await producer.send_and_wait("invoices", order.value)
        AFTER

async def simulate(kafka):
    kafka.start("shop", shop, kafka.bootstrap)
    orders, invoices = await kafka.topic("orders"), await kafka.topic("invoices")
    async with kafka.faults("kill program", "reset connections", every="2s"):
        for number in range(8):
            await orders.produce([str(number)])
            await asyncio.sleep(0.5)
    await asyncio.sleep(25)
    found = {each.value for each in await invoices.records()}
    assert len(found) == 8, f"{8 - len(found)} orders have no invoice"
"""
CAREFUL = SHOP.replace("BEFORE", "pass").replace("AFTER", "await consumer.commit()")
HASTY = SHOP.replace("BEFORE", "await consumer.commit()").replace("AFTER", "pass")


Run = Callable[..., Outcome]


class Ran:
    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.status, self.text = done.returncode, done.stdout + done.stderr
        if "hashes None by its address" in self.text:
            pytest.skip(self.text.strip())


Simulated = Callable[..., Ran]


@pytest.fixture
def simulated(tmp_path: Path) -> Callable[..., Ran]:
    """Runs `replog simulate` on a source; `options` as they are typed."""

    def run(source: str, *options: str) -> Ran:
        (tmp_path / "scenario.py").write_text(dedent(source))
        return command(tmp_path, "scenario.py", *options)

    return run


@pytest.fixture
def outcome(tmp_path: Path) -> Callable[..., Outcome]:
    """Runs one seed of a source, in a fork of this process: no import is waited for."""

    def run(source: str, seed: int = 0) -> Outcome:
        path = tmp_path / "scenario.py"
        path.write_text(dedent(source))

        def work(_: int) -> Outcome:
            controlled = Controlled()
            controlled.install()
            # What other tests imported was imported before all was controlled.
            for name in [*sys.modules]:
                if name.partition(".")[0] in (*REFUSED_CLIENTS, "aiokafka", "faststream"):
                    del sys.modules[name]
            return run_seed(load(str(path), controlled), seed, controlled)

        made = run_all([0], work, 1, 120, each_its_own=True)
        with closing(made):
            found = next(each for each in made if each is not None)[1]
        assert isinstance(found, Outcome), found
        return found

    return run


def command(folder: Path, *arguments: str) -> Ran:
    environment = {name: value for name, value in os.environ.items() if "REPLOG" not in name}
    return Ran(
        subprocess.run(
            [sys.executable, "-m", "twisted_broker.testing.simulated", *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    )


def scenario(body: str, cluster: str = '{"brokers": 1}') -> str:
    """A source whose `simulate` is `body`."""
    imports = "import asyncio, os, random, socket, time, uuid\nfrom datetime import datetime\n"
    return f"{imports}CLUSTER = {cluster}\nasync def simulate(kafka):\n" + indent(
        dedent(body), "    "
    )


# seeds


def test_seeds_find_what_a_program_loses_and_a_careful_one_does_not(
    simulated: Simulated, tmp_path: Path
) -> None:
    assert simulated(CAREFUL, "--seeds", "3").status == 0
    hasty = simulated(HASTY, "--seeds", "3")
    assert hasty.status == 1
    assert "shop       is killed" in hasty.text
    # One kill is enough, and the schedule that is left says which.
    again = re.search(r"again: replog simulate (scenario.py) --schedule (\S+)", hasty.text)
    assert again is not None, hasty.text
    schedule = (tmp_path / again[2]).read_text()
    assert schedule.count("kill shop") == 1 and "reset" not in schedule
    replayed = command(tmp_path, again[1], "--schedule", again[2])
    assert replayed.status == 1
    reason = re.search(r"seed \d+: (AssertionError: .*)", hasty.text)
    assert reason is not None and reason[1] in replayed.text


def test_two_processes_have_the_same_run_of_a_seed(simulated: Simulated) -> None:
    found = [simulated(CAREFUL, "--seeds", "2", "--digests").text for _ in range(2)]
    digests = [sorted(re.findall(r"^seed \d+ [0-9a-f]{16}$", text, re.M)) for text in found]
    assert digests[0] == digests[1]
    assert len({each.split()[2] for each in digests[0]}) == 2


def test_the_example_runs(tmp_path: Path) -> None:
    ran = command(tmp_path, str(EXAMPLE), "--seeds", "1")
    assert ran.status == 0, ran.text
    assert "1 passed" in ran.text


def test_a_faststream_app_runs_as_it_is(simulated: Simulated) -> None:
    pytest.importorskip("faststream")
    ran = simulated(
        """
        import asyncio
        from faststream import FastStream
        from faststream.kafka import KafkaBroker

        CLUSTER = {"topics": {"orders": 1, "invoices": 1}}

        async def app(servers):
            broker = KafkaBroker(servers, acks="all", enable_idempotence=True)

            @broker.subscriber("orders", group_id="shop", auto_offset_reset="earliest")
            @broker.publisher("invoices")
            async def on_order(number: int) -> int:
                return number + 1

            await FastStream(broker).run()

        async def simulate(kafka):
            kafka.start("app", app, kafka.bootstrap.split(","))
            await (await kafka.topic("orders")).produce([b"1", b"2"])
            found = await (await kafka.topic("invoices")).records(at_least=2, within="60s")
            assert [each.value for each in found] == [b"2", b"3"]
        """,
        "--seeds",
        "2",
    )
    assert ran.status == 0, ran.text


# what a program sees


def test_time_and_chance_are_the_seeds(outcome: Run) -> None:
    source = scenario(
        """
        before = time.monotonic(), time.time(), datetime.now(), asyncio.get_running_loop().time()
        await asyncio.sleep(60)
        assert round(time.monotonic() - before[0]) == 60
        assert round(time.time() - before[1]) == 60
        assert round((datetime.now() - before[2]).total_seconds()) == 60
        drawn = random.random(), random.Random().random(), uuid.uuid4(), uuid.uuid1(), os.urandom(4)
        kafka.note(f"drew {drawn} {kafka.random.random()} at {datetime.now()}")
        """
    )
    runs = [outcome(source, seed) for seed in (3, 3, 4)]
    assert not runs[0].failure, runs[0]
    drawn = [[line for line in run.story if "drew" in line] for run in runs]
    assert drawn[0] == drawn[1] != drawn[2]


def test_the_loop_is_asyncios(outcome: Run) -> None:
    ran = outcome(
        scenario(
            """
            loop, order = asyncio.get_running_loop(), []
            for number in range(3):
                loop.call_soon(order.append, number)
            cancelled = loop.call_later(0.1, order.append, "never")
            loop.call_later(0.2, order.append, "late")
            loop.call_later(0.1, order.append, "early")
            cancelled.cancel()
            await asyncio.sleep(1)
            assert order == [0, 1, 2, "early", "late"], order
            assert await asyncio.to_thread(lambda: 5) == 5
            try:
                async with asyncio.timeout(2):
                    await asyncio.Event().wait()
            except TimeoutError:
                order.append("timed out")
            queue = asyncio.Queue(1)
            async with asyncio.TaskGroup() as group:
                group.create_task(queue.put(1))
                assert await group.create_task(queue.get()) == 1
            for host, port, error in (
                ("broker-1", 1, ConnectionRefusedError), ("nowhere", 1, socket.gaierror)
            ):
                try:
                    await asyncio.open_connection(host, port)
                except error:
                    order.append(host)
            assert order[5:] == ["timed out", "broker-1", "nowhere"], order
            reader, writer = await asyncio.open_connection("broker-1", 9092)
            writer.write(bytes.fromhex("0000000a 0012 0000 00000007 0000".replace(" ", "")))
            answer = await reader.readexactly(8)
            assert answer[4:] == b"\\0\\0\\0\\7", answer
            writer.close()
            await writer.wait_closed()
            """
        )
    )
    assert not ran.failure, ran


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("time.sleep(1)", "time.sleep()"),
        ("import confluent_kafka", "confluent-kafka works in threads of C"),
        ("import kafka as client", "kafka-python works in threads"),
        ("import threading; threading.Thread(target=print).start()", "a thread"),
        ("import subprocess; subprocess.run(['true'])", "another process"),
        ("socket.create_connection(('127.0.0.1', 9))", "socket.connect()"),
        ("await asyncio.start_server(print, '0.0.0.0', 0)", "loop.create_server()"),
    ],
)
def test_what_no_seed_controls_is_refused(outcome: Run, statement: str, said: str) -> None:
    # Not even who catches everything goes on.
    source = scenario(f"try:\n    {statement}\nexcept Exception:\n    pass\nassert 0\n")
    assert said in outcome(source).refused


def test_a_refusal_is_one_line(simulated: Simulated) -> None:
    ran = simulated(scenario("time.sleep(1)"), "--seeds", "2")
    assert ran.status == 2
    assert "Error: cannot be simulated: time.sleep() holds every task" in ran.text
    assert "Traceback" not in ran.text


# programs


def test_a_killed_program_does_nothing_more_and_starts_anew(outcome: Run) -> None:
    ran = outcome(
        scenario(
            """
            seen = []

            async def program(word):
                seen.append(word)
                try:
                    await asyncio.sleep(5)
                    seen.append("slept")
                finally:
                    seen.append("finally")

            started = kafka.start("p", program, "hello", restart=False)
            await asyncio.sleep(1)
            started.kill()
            await asyncio.sleep(10)
            assert seen == ["hello"], seen
            started.start()
            await asyncio.sleep(10)
            assert seen == ["hello", "hello", "slept", "finally"], seen
            assert started.exits == [""] and not started.is_running
            """
        )
    )
    assert not ran.failure, ran


def test_a_program_that_ends_is_started_again_after_a_pause_that_doubles(outcome: Run) -> None:
    ran = outcome(
        scenario(
            """
            starts = []

            async def program():
                starts.append(asyncio.get_running_loop().time())
                if len(starts) == 2:
                    raise SystemExit(3)
                raise ValueError("no money")

            began = asyncio.get_running_loop().time()
            started = kafka.start("p", program)
            await asyncio.sleep(8)
            assert [round(each - began) for each in starts] == [0, 1, 3, 7], starts
            assert started.exits[0].startswith("ValueError: no money (")
            assert started.exits[1].startswith("SystemExit: 3")
            """
        )
    )
    assert not ran.failure, ran
    assert any("p          ends: ValueError: no money" in line for line in ran.story)


def test_a_cluster_has_its_verbs_in_virtual_time(outcome: Run) -> None:
    ran = outcome(
        """
        import asyncio, time
        from aiokafka import AIOKafkaProducer
        from twisted_broker.testing import isr

        CLUSTER = {"brokers": 3, "topics": {"orders": 1}, "settings": {"min.insync.replicas": 2}}

        async def simulate(kafka):
            began = time.time()
            orders = await kafka.topic("orders")
            producer = AIOKafkaProducer(
                bootstrap_servers=kafka.bootstrap, enable_idempotence=True
            )
            await producer.start()
            await kafka.lose_answer("Produce", topic="orders", times=1)
            await producer.send_and_wait("orders", b"0")
            awaited = asyncio.create_task(orders.records(at_least=12, within="1h"))
            for number in range(9):
                await producer.send_and_wait("orders", b"more")
            leader = await kafka.leader("orders", 0)
            async with leader.killed():
                await kafka.wait_until(isr("orders", 0) != {1, 2, 3}, within="60s")
                await producer.send_and_wait("orders", b"1")
            await kafka.wait_until(isr("orders", 0) == {1, 2, 3}, within="60s")
            async with kafka.link("test", 1).cut_off(), kafka.link("test", 2).cut_off():
                sending = asyncio.create_task(producer.send_and_wait("orders", b"2"))
                await kafka.clock.advance("20s")
            await sending
            await kafka.clock.advance("7d")
            assert time.time() - began > 7 * 86400
            await producer.stop()
            assert len(await awaited) == len(await orders.records()) == 12
            await kafka.assert_nothing_lost("orders")
            await kafka.assert_no_duplicates("orders")
        """
    )
    assert not ran.failure, ran


# what is wrong


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (scenario("pass", '{"settings": {"broker.session.timeout.ms": "x"}}'), "session.timeout"),
        (scenario("kafka.faults('kill borker')"), "'kill borker' is no fault: there are"),
        (scenario("kafka.start('p', print)"), "is no coroutine function"),
        (scenario("kafka.start('broker-1', asyncio.sleep, 1)"), "a machine 'broker-1' already"),
        (
            scenario("await asyncio.Event().wait()", '{"brokers": 1, "most_seconds": 9}'),
            "simulate() has not returned after 9 s",
        ),
        (scenario("while True: await asyncio.sleep(0)"), "a program spins"),
    ],
)
def test_what_is_wrong_fails_the_run(outcome: Run, source: str, said: str) -> None:
    assert said in outcome(source).failure


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("x = 1", "has no `async def simulate(kafka)`"),
        ("def simulate(kafka): pass", "has no `async def simulate(kafka)`"),
        (scenario("pass", '{"nodes": 3}'), "is a dict of brokers"),
    ],
)
def test_a_file_without_a_scenario_is_one_line(tmp_path: Path, source: str, said: str) -> None:
    path = tmp_path / "scenario.py"
    path.write_text(source)

    class Nothing(Controlled):
        def begin(self, seed: int) -> None: ...
        def end(self) -> None: ...

    with pytest.raises(CannotSimulateError, match=re.escape(said)):
        load(str(path), Nothing())


def test_a_schedule_that_is_none_is_one_line(simulated: Simulated, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[]")
    ran = simulated(scenario("pass"), "--schedule", "x.json")
    assert ran.status == 2
    assert "x.json is no schedule of `replog simulate`" in ran.text
