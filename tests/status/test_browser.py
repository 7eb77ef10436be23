"""The pages in a browser: Chromium, headless, beside two real brokers of which one dies."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.broker_process import BrokerProcess
from tests.compat.cluster_processes import View
from tests.status.test_pages import Page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (Debian: apt-get install chromium)"),
]
GROUP = "<script>document.title='owned';console.error('owned')</script>"
SECONDS = 60


class Browser:
    """Each page in a process of its own; what its console said is kept."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.console: list[str] = []

    def run(self, address: str, *options: str) -> str:
        assert CHROMIUM is not None
        command = [
            CHROMIUM,
            "--headless",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--enable-logging=stderr",
            f"--user-data-dir={self.directory / 'profile'}",
            *(["--no-sandbox"] if os.getuid() == 0 else []),
            *options,
            address,
        ]
        found = subprocess.run(
            command, capture_output=True, timeout=SECONDS, check=True, cwd=self.directory
        )
        said = found.stderr.decode(errors="replace")
        self.console += [line for line in said.splitlines() if "CONSOLE" in line]
        return found.stdout.decode()

    def page(self, address: str) -> Page:
        """The page after the browser has read it."""
        return Page(self.run(address, "--dump-dom"))

    def picture(self, address: str, width: int, height: int) -> bytes:
        path = self.directory / "picture.png"
        self.run(address, f"--window-size={width},{height}", f"--screenshot={path}")
        return path.read_bytes()


@pytest.fixture(scope="module")
def status(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The status address of broker 1, which is the controller, too. Broker 2 was killed, with a
    partition that only it has.
    """
    directory = tmp_path_factory.mktemp("brokers")
    own = {"broker.session.timeout.ms": "2500", "offsets.topic.num.partitions": "1"}
    first = BrokerProcess(directory / "1", own)
    second: BrokerProcess | None = None
    try:
        first.start()
        # Before there is another broker that could get __consumer_offsets.
        fill(first.bootstrap)
        controller = str(first.run()["controller"])
        settings = {
            "node.id": "2",
            "process.roles": "broker",
            "controller.quorum.bootstrap.servers": controller,
        }
        second = BrokerProcess(directory / "2", settings).start()
        view = View(first.bootstrap)
        create(first.bootstrap, NewTopic("alone", 1, replica_assignment=[[2]]))
        second.kill()
        view.until(lambda: view.leaders("alone") == {0: -1}, "broker 2 is fenced")
        nodes: Any = first.run()["brokers"]
        yield str(nodes["1"]["status"])
    finally:
        first.kill()
        if second is not None:
            second.kill()


def create(bootstrap: str, topic: NewTopic) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.create_topics([topic]).values():
        done.result(SECONDS)


def fill(bootstrap: str) -> None:
    create(bootstrap, NewTopic("orders", 2, 1))
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(5):
        producer.produce("orders", str(number), partition=0)
    assert producer.flush(SECONDS) == 0
    for group in (GROUP, "billing"):
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
        consumer.commit(offsets=[TopicPartition("orders", 0, 2)], asynchronous=False)
        consumer.close()


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    return Browser(tmp_path)


def test_a_browser_shows_trouble_first_and_nothing_runs(status: str, browser: Browser) -> None:
    """The health line, the troubles, then the rest; a group's name stays text; the console has no
    word.
    """
    page = browser.page(f"http://{status}/")
    text = page.whole
    assert re.search(r"✗ 2 troubles", text), text[:500]
    order = ["✗", "broker 2 is fenced", "alone-0 has no leader", "brokers running", "Brokers"]
    found = [text.index(each) for each in order]
    assert found == sorted(found)
    assert page.row("2")[3] == "fenced" and page.row("1 (this one)")[3] == "running"
    assert page.row("billing")[-1] == "3"
    assert page.row(GROUP)[-1] == "3" and not page.tags("script")
    assert browser.console == []


def test_the_filter_filters(status: str, browser: Browser) -> None:
    """What is typed is in the address, in the box and in the rows."""
    page = browser.page(f"http://{status}/?topic=ORD")
    first = [row[0] for row in page.rows]
    assert "orders" in first and "alone" not in first
    assert "ORD" in [each.get("value") for each in page.tags("input")]
    assert "alone-0 has no leader" in page.whole, "trouble is not filtered"
    assert browser.console == []


def test_every_page_opens_without_a_word_on_the_console(status: str, browser: Browser) -> None:
    """The links of the first page, and of theirs."""
    page = browser.page(f"http://{status}/topics/orders")
    assert page.row("orders-0")[5:7] == ["0 to 5", "5"]
    page = browser.page(f"http://{status}/explain/alone/0")
    assert "It has no leader; broker 1 holds no replica of it" in page.whole
    page = browser.page(f"http://{status}/explain/orders/0")
    assert "Broker 1 leads it at epoch" in page.whole
    assert browser.console == []


def test_a_picture_of_it_on_a_desk_and_on_a_phone(status: str, browser: Browser) -> None:
    """It is drawn at both widths: more than one colour, of the size that was asked for."""
    for width, height in ((1280, 900), (500, 900)):
        picture = browser.picture(f"http://{status}/", width, height)
        assert picture[:8] == b"\x89PNG\r\n\x1a\n"
        size = int.from_bytes(picture[16:20], "big"), int.from_bytes(picture[20:24], "big")
        assert size == (width, height) and len(picture) > 20_000, "an empty page is small"
    assert browser.console == []


def test_the_console_is_heard(browser: Browser, tmp_path: Path) -> None:
    """What the other tests do not find would be found."""
    path = tmp_path / "page.html"
    path.write_text("<script>console.error('spoken')</script>")
    browser.page(path.as_uri())
    assert len(browser.console) == 1 and "spoken" in browser.console[0]
