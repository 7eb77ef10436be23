"""How the broker's wheel is built: setuptools' own backend, with mypyc where a C compiler is.

1. The wheel is compiled where a C compiler and Python's headers are; otherwise one line says so,
   and the pure one is built. `REPLOG_COMPILED=1`: the compiled one, or an error; `0`: the pure one.
2. An editable install and a source distribution are never compiled.
3. Only a compiled wheel needs mypyc's libraries, to be built and to run.

Not here: what is compiled (`modules.txt`), how (`setup.py`).
"""

import os
import subprocess
import sys
import sysconfig

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403

# The C text depends on the version. mypy needs to see the types of what is imported.
TOOLS = ["mypy == 2.4.1", "mypy-zope", "twisted", "zope.interface", "crc32c", "click", "rich"]
LIBRARIES = ["librt >= 0.17, < 0.18", "mypy_extensions"]


def wanted() -> bool:
    """Whether the wheel is to be compiled."""
    setting = os.environ.get("REPLOG_COMPILED", "auto")
    return setting == "1" or (setting != "0" and _compiles())


def _compiles() -> bool:
    if sys.implementation.name != "cpython":
        return False
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()
    command = [*compiler, "-fsyntax-only", f"-I{sysconfig.get_path('include')}", "-x", "c", "-"]
    try:
        done = subprocess.run(
            command, input=b"#include <Python.h>\n", capture_output=True, check=False
        )
    except OSError:
        return False
    return done.returncode == 0


def get_requires_for_build_wheel(config_settings=None):
    """Setuptools' own, and what compiling needs."""
    plain = build_meta.get_requires_for_build_wheel(config_settings)
    return [*plain, *TOOLS, *LIBRARIES] if wanted() else plain


def prepare_metadata_for_build_editable(directory, config_settings=None):
    """As of a pure wheel."""
    os.environ["REPLOG_COMPILED"] = "0"
    return build_meta.prepare_metadata_for_build_editable(directory, config_settings)
