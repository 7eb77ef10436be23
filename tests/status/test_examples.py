"""`examples/grafana` works as it stands: its dashboard is what its table makes, and each expression
of it has a value.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.status.published_dashboards import Scrapes, has_value

HERE = Path(__file__).parents[2] / "examples" / "grafana"
_LABELS_OF = re.compile(r"\b(?:by|on|group_right) \([^)]*\)")


def test_the_dashboard_is_made_of_its_table() -> None:
    """And says so: a second run gives the same bytes."""
    made = subprocess.run(
        [sys.executable, HERE / "make_dashboard.py"], capture_output=True, check=True
    )
    assert made.stdout == (HERE / "dashboard.json").read_bytes()


def test_every_expression_has_a_value(scraped: Scrapes) -> None:
    """A panel that shows nothing on a broker that works would be one too many."""
    panels = json.loads((HERE / "dashboard.json").read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(expressions) > 20
    for expression in expressions:
        names = re.findall(
            r"\b(?:kafka|replog|process)_\w+(?:\{[^}]*\})?", _LABELS_OF.sub("", expression)
        )
        assert names, expression
        wanted = " ".join(names).replace("$topic", ".+")
        assert has_value(wanted, scraped), wanted


def test_prometheus_finds_the_broker_where_the_readme_starts_it() -> None:
    """The port of the configuration is that of the first line."""
    port = re.search(r"replog\.status\.port=(\d+)", (HERE / "README.md").read_text())
    assert port is not None
    targets = re.findall(r'targets: \["([^"]*)"\]', (HERE / "prometheus.yml").read_text())
    assert targets == [f"127.0.0.1:{port[1]}"] * 2
