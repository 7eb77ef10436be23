"""The page of a cluster in Chromium, headless, by Playwright: of a test's cluster, and of a broker.

With `REPLOG_PICTURES=1` the picture of docs/TESTING.md is drawn anew.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from tests.compat.broker_process import BrokerProcess
from tests.testing.test_http_api import HERE, Api

playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = [
    pytest.mark.clients,
    pytest.mark.more,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (Debian: apt-get install chromium)"),
]
MS = 20_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"] if os.getuid() == 0 else []
        )
        yield started
        started.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """One whose console has no word at the end."""
    made = browser.new_page(viewport={"width": 1280, "height": 1000})
    made.set_default_timeout(MS)
    said: list[str] = []
    made.on("console", lambda message: said.append(message.text))
    made.on("pageerror", lambda error: said.append(str(error)))
    yield made
    made.close()
    assert said == []


def wait_for(page: Any, where: str, text: str) -> None:
    playwright.expect(page.locator(where)).to_contain_text(text, timeout=MS)


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    made = Api("--brokers", "3", "--topic", "orders:3", "--set", "offsets.topic.num.partitions=1")
    yield made
    made.close()


def test_a_cluster_of_a_test(api: Api, page: Any, tmp_path: Path) -> None:
    """What is struck by a key is seen, told, and can be looked back at."""
    api.verb("produce", topic="orders", records=["one", "two", "three", "four"])
    reading = {"bootstrap.servers": api.where["bootstrap"], "group.id": "shop"}
    consumer = Consumer({**reading, "client.id": "till", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    assert consumer.poll(30) is not None
    consumer.commit()
    page.goto(api.where["url"])
    wait_for(page, "#partitions", "orders-0 ✓")
    wait_for(page, "#groups", "till (orders-0 orders-1 orders-2)")
    assert page.locator("#assigned line").count() == 3
    wait_for(page, "#waiting", "a consumer reads from")
    struck = api.verb("leader", topic="orders", partition=0)
    others = [each for each in (1, 2, 3) if each != struck]
    page.locator(f"[data-key='kill{{\"node\":{struck}}}']").focus()
    page.keyboard.press("Enter")
    wait_for(page, "#machines", f"broker-{struck} ({struck})off")
    wait_for(page, "#told", f'kill {{"node": {struck}}}')
    page.locator("#time input").fill("10s")
    page.keyboard.press("Enter")
    wait_for(page, "#told", f"orders-0: leader broker {struck} -> broker")
    wait_for(page, "#partitions", "orders-0 △")
    wait_for(page, "#brokers", f"{struck}fenced")
    wait_for(page, "#partitions", f"broker {struck}, out of the ISRnot seen here")
    cut = page.locator("#strike")
    cut.locator("[name=verb]").select_option("cut_link")
    cut.locator("[name=node]").select_option(str(others[0]))
    cut.locator("[name=other]").select_option(str(others[1]))
    cut.locator("button").click()
    wait_for(page, "#links", f"broker-{others[0]}")
    if os.environ.get("REPLOG_PICTURES"):
        page.screenshot(path=HERE / "docs" / "page.png", full_page=True)
    # Back to before the kill, as it was then; nothing can be struck in the past.
    page.locator("#mark").focus()
    page.keyboard.press("Home")
    wait_for(page, "#machines", f"broker-{struck} ({struck})runs")
    wait_for(page, "#partitions", "orders-0 ✓")
    wait_for(page, "#moment", "before now")
    assert page.locator("#machines button").count() == 0
    page.locator("#now").click()
    wait_for(page, "#machines", f"broker-{struck} ({struck})off")
    heal = page.locator("#links button").first
    heal.click()
    wait_for(page, "#told", "healed")
    api.verb("heal_link", one=others[0], other=others[1])
    api.verb("restart", node=struck)
    wait_for(page, "#partitions", "orders-0 ✓")
    consumer.close()


def test_what_was_before_the_page_is_told_and_what_was_truncated_is_struck_through(
    api: Api, page: Any
) -> None:
    api.verb("make_topic", topic="torn", partitions=1)
    leader = api.verb("leader", topic="torn", partition=0)
    for other in {1, 2, 3, 100} - {leader}:
        api.verb("cut_link", one=leader, other=other)
    lone = Producer({"bootstrap.servers": api.where["bootstrap"], "acks": 1})
    for _ in range(3):
        lone.produce("torn", b"lost")
    assert lone.flush(20) == 0
    page.goto(api.where["url"])
    wait_for(page, "#told", "make_topic")
    page.locator("#filter").fill("torn")
    wait_for(page, "#partitions", "0 to 3")
    api.verb("advance", by="20s")
    api.verb("produce", topic="torn", records=["kept"])
    for other in {1, 2, 3, 100} - {leader}:
        api.verb("heal_link", one=leader, other=other)
    wait_for(page, "#partitions s", "1 to 3")
    wait_for(page, "#partitions", "torn-0 ✓")
    assert page.locator("#partitions i.struck").count() == 1
    if os.environ.get("REPLOG_PICTURES"):
        page.screenshot(path=os.environ["REPLOG_PICTURES"] + "-torn.png", full_page=True)


def test_many_partitions_are_a_grid_for_the_keyboard(api: Api, page: Any) -> None:
    api.verb("make_topic", topic="many", partitions=50)
    page.goto(api.where["url"])
    wait_for(page, "#grid", "49 ✓")
    assert page.locator("#partitions").is_hidden()
    cells = page.locator("#grid .cell")
    assert cells.count() == 54
    assert page.locator("#grid .cell[tabindex='0']").count() == 1
    cells.first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    wait_for(page, "#partitions", "many-1 ✓")
    assert page.evaluate("document.activeElement.dataset.key") == "many-1"
    assert page.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"
    page.locator("#filter").fill("orders")
    wait_for(page, "#partitions", "orders-2 ✓")
    assert page.locator("#grid").is_hidden()


def test_without_its_style_it_is_tables(api: Api, page: Any) -> None:
    page.goto(api.where["url"])
    wait_for(page, "#machines", "runs")
    page.evaluate("document.querySelector('style').remove()")
    for table in page.locator("table:visible").all():
        assert table.locator("caption").inner_text() and table.locator("th").count()
    assert page.locator("th:not([scope])").count() == 0


def test_a_broker_shows_the_same_and_can_only_be_looked_at(
    page: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    broker = BrokerProcess(tmp_path)
    request.addfinalizer(broker.kill)
    broker.start()
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("orders", b"one")
    assert producer.flush(20) == 0
    nodes: Any = broker.run()["brokers"]
    asked: list[str] = []
    page.on("request", lambda sent: asked.append(sent.method))
    (node,) = nodes.values()
    page.goto(f"http://{node['status']}/live/")
    wait_for(page, "#partitions", "orders-0 ✓")
    wait_for(page, "#partitions", "0 to 1")
    producer.produce("orders", b"two")
    assert producer.flush(20) == 0
    wait_for(page, "#partitions", "0 to 2")
    wait_for(page, "#brokers", "running")
    assert page.locator("form:visible").count() == 0
    assert {*asked} == {"GET"}
