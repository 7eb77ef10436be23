"""The compiled modules of a wheel; all else is in setup.cfg and pyproject.toml.

1. The modules of `compiled/modules.txt` are one group of mypyc: a call from one to another is a
   call in C. The messages of `compiled/families.txt` are among them, as native classes.
2. The `.py` files stay in the wheel beside the compiled ones: tracebacks show their lines.
3. What cannot be compiled is left out whole, with one line, unless REPLOG_COMPILED=1. Modules that
   mypyc gets wrong are interpreted (`tests/test_compiled.py` names them).

Not here: when a wheel is compiled (`compiled/backend.py`).
"""

import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.dist import Distribution

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "compiled"))

import backend  # noqa: E402

BEGAN = time.monotonic()
SOURCE = ROOT / "build" / "compiled-source"
# `make lint` is strict; here types decide what is compiled, and whoever installs may have others.
MYPY = """[mypy]
plugins = mypy_zope:plugin
ignore_missing_imports = True
check_untyped_defs = True
"""
WHEEL = {"bdist_wheel", "build", "build_ext"}.intersection(sys.argv)


def extensions():
    """mypyc's, of a copy of the package."""
    from mypyc.build import mypycify

    shutil.rmtree(SOURCE, ignore_errors=True)
    shutil.copytree(
        ROOT / "twisted_broker",
        SOURCE / "twisted_broker",
        ignore=shutil.ignore_patterns("__pycache__", "*.so"),
    )
    (SOURCE / "mypy.ini").write_text(MYPY)
    names = (ROOT / "compiled" / "modules.txt").read_text().split()
    sys.path.insert(0, str(ROOT))
    from twisted_broker.wire.native_source import native_source

    for family in (ROOT / "compiled" / "families.txt").read_text().split():
        names.append(f"wire.messages.{family}")
        text = native_source(f"twisted_broker.wire.messages.{family}")
        (SOURCE / "twisted_broker" / "wire" / "messages" / f"{family}.py").write_text(text)
    paths = [f"twisted_broker/{name.replace('.', '/')}.py" for name in names]
    os.chdir(SOURCE)
    try:
        return mypycify(
            paths,
            opt_level="2",
            multi_file=True,
            target_dir=str(ROOT / "build" / "compiled-c"),
            group_name="twisted_broker",
        )
    finally:
        os.chdir(ROOT)


class BuildExtensions(build_ext):
    """All, or none; a file of C on each core."""

    def build_extensions(self):
        one = self.compiler.compile

        def compile_all(sources, **options):
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                done = pool.map(lambda source: one([source], **options), sources)
                return [path for paths in done for path in paths]

        self.compiler.compile = compile_all
        super().build_extensions()

    def run(self):
        try:
            super().run()
            if self.extensions:
                sys.stderr.write(f"compiled in {time.monotonic() - BEGAN:.0f} s\n")
        except Exception as reason:
            if os.environ.get("REPLOG_COMPILED") == "1":
                raise
            plain(f"compiling failed: {reason}")
            for extension in self.extensions:
                Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)


class BrokerDistribution(Distribution):
    """A compiled wheel needs one more library."""

    def parse_config_files(self, filenames=None, ignore_option_errors=False):
        super().parse_config_files(filenames, ignore_option_errors)
        if (WHEEL or "dist_info" in sys.argv) and backend.wanted():
            self.install_requires = [*self.install_requires, *backend.LIBRARIES]
            self.metadata.install_requires = self.install_requires


def plain(why):
    """No extensions."""
    sys.stderr.write(f"plain Python is installed: {why}\n")
    return []


def compiled():
    """The extensions of this run; none where the wheel is a pure one."""
    if not WHEEL:
        return []
    if not backend.wanted():
        if os.environ.get("REPLOG_COMPILED") == "0":
            return []
        return plain("no C compiler with Python's headers here")
    sys.stderr.write("compiling takes one to three minutes; REPLOG_COMPILED=0 leaves it out\n")
    try:
        return extensions()
    except (Exception, SystemExit) as reason:
        if os.environ.get("REPLOG_COMPILED") == "1":
            raise
        return plain(f"mypyc failed: {reason}")


setup(
    distclass=BrokerDistribution,
    cmdclass={"build_ext": BuildExtensions},
    ext_modules=compiled(),
)
