"""The version is read without loading anything."""

import subprocess
import sys

from click.testing import CliRunner

import twisted_broker
from twisted_broker.cli.main import main


def test_the_command_says_the_version() -> None:
    """From the source text, not from metadata that an editable install made some time ago."""
    result = CliRunner().invoke(main, ["--version"])
    assert (result.exit_code, result.output) == (
        0,
        f"replog, version {twisted_broker.__version__}\n",
    )


def test_the_version_costs_no_imports() -> None:
    """setuptools reads it while the dependencies are not there yet."""
    code = (
        "import sys; old = set(sys.modules); import twisted_broker; print(*set(sys.modules) - old)"
    )
    loaded = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.split() == ["twisted_broker"]
