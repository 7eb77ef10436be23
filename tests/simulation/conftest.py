"""Whole runs in processes of their own: what each leaves behind, up to some hundred megabytes, goes
with its process, and the tests behind it stay as fast as they are alone.
"""

from __future__ import annotations

import os
import pickle
import signal
import traceback

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is marked `forked` runs in a fork of this process."""
    if pyfuncitem.get_closest_marker("forked") is None:
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    result, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(result)
        os.write(told, _outcome(pyfuncitem, arguments))
        os._exit(0)
    os.close(told)
    try:
        with open(result, "rb") as file:
            text = pickle.loads(file.read() or pickle.dumps("its process died"))  # noqa: S301
    finally:  # also at the test's time limit
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if text:
        pytest.fail(text, pytrace=False)
    return True


def _outcome(item: pytest.Function, arguments: dict[str, object]) -> bytes:
    """Empty, or what failed; below the size of a pipe, so that nobody waits for its reader."""
    try:
        item.obj(**arguments)
    except BaseException:
        return pickle.dumps(traceback.format_exc()[-40_000:])
    return pickle.dumps("")
