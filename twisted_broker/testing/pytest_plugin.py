"""Fixtures of pytest: `kafka`, a cluster for each test, and `kafka_cluster`, one for all.

Owns the fixtures, the marker and the options. pytest loads this module in every run of whoever has
the package installed: it imports nothing but pytest and what pytest has.

1. A test with `kafka` has a cluster of its own, made in some hundredths of a second, or one of a
   test before it, as it was before that (`pool.py`);
   `@pytest.mark.kafka(brokers=3, settings={..}, topics={"orders": 3})` says of what kind.
2. The process that clusters are forked from starts as soon as collection has found a test that
   needs one, while the tests before it run; in a run without one it never does.
3. The report of a test that failed has what its cluster logged meanwhile, and the last requests of
   its clients; all of them are in two files.

Source: our own; pytest's hooks. Not here: clusters (`cluster.py`).
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from twisted_broker.testing.cluster import Cluster
    from twisted_broker.testing.pool import Pool

_FIXTURES = {"kafka", "kafka_cluster"}
_OF_MARKER = {"brokers", "isolation", "settings", "topics"}
_ISOLATIONS = ("snapshot", "names", "none")
_LOG_BYTES, _REQUESTS = 8000, 40
_BEGAN = pytest.StashKey[dict[str, int]]()
_POOL = pytest.StashKey["Pool"]()
_SEED = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options."""
    group = parser.getgroup("kafka", "Kafka clusters (twisted-broker)")
    group.addoption(
        "--kafka-brokers",
        type=int,
        default=1,
        metavar="N",
        help="brokers of the clusters of tests that do not say otherwise (1)",
    )
    group.addoption(
        "--kafka-seed",
        type=int,
        metavar="N",
        help="seed of the chances of what tests strike (drawn; a failed test's report has it)",
    )
    group.addoption(
        "--kafka-trace",
        choices=("failed", "always"),
        default="failed",
        help="whose requests are written to files: of tests that failed, or of all (failed)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """The marker."""
    config.addinivalue_line(
        "markers",
        "kafka(brokers=1, settings={}, topics={}, isolation='snapshot'): the cluster of this "
        "test's `kafka` fixture; isolation='names' or 'none': one that tests share",
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    """Starts what clusters are forked from, where a test will need one."""
    items = [each for each in session.items if _FIXTURES.intersection(_names(each))]
    if items and not session.config.option.collectonly:
        from twisted_broker.testing.template_client import template

        template()
        _pool(session.config, filter(None, map(_kind, items)))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Ends the clusters that no test has."""
    pool = config.stash.get(_POOL, None)
    if pool is not None:
        pool.close()


def _pool(config: pytest.Config, kinds: Iterable[str] = ()) -> Pool:
    """The one of this run; `kinds`: of all tests that are going to ask it."""
    if _POOL not in config.stash:
        from twisted_broker.testing.pool import Pool

        config.stash[_POOL] = Pool(kinds)
    return config.stash[_POOL]


def _names(item: pytest.Item) -> Collection[str]:
    return getattr(item, "fixturenames", ())


def _kind(item: pytest.Item) -> str | None:
    """Of the cluster of its own that a test wants; None: of none, or of one that cannot be."""
    from twisted_broker.testing.pool import kind_of

    try:
        wanted, isolation = _wanted(item)
        is_own = "kafka" in _names(item) and isolation == "snapshot"
        return kind_of(wanted) if is_own else None
    except (TypeError, pytest.UsageError):
        return None


def _seed(config: pytest.Config) -> int:
    if _SEED not in config.stash:
        from random import randrange

        given = config.option.kafka_seed
        config.stash[_SEED] = randrange(1_000_000) if given is None else given
    return config.stash[_SEED]


def _wanted(item: Any) -> tuple[dict[str, Any], str]:
    """Of what kind its cluster is to be, and how apart from other tests. Raises UsageError."""
    wanted = _default(item.config)
    for marker in reversed(list(item.iter_markers("kafka"))):
        unknown = marker.kwargs.keys() - _OF_MARKER
        if marker.args or unknown:
            what = sorted(unknown)[0] if unknown else "a value without a name"
            raise pytest.UsageError(
                f"@pytest.mark.kafka takes {', '.join(sorted(_OF_MARKER))}, not {what}"
            )
        wanted |= marker.kwargs
    isolation = wanted.pop("isolation", "snapshot")
    if isolation not in _ISOLATIONS:
        raise pytest.UsageError(f"isolation is {', '.join(_ISOLATIONS)}, not {isolation!r}")
    return wanted, isolation


def _default(config: pytest.Config) -> dict[str, Any]:
    return {"brokers": config.option.kafka_brokers, "seed": _seed(config)}


@pytest.fixture(scope="session")
def kafka_cluster(pytestconfig: pytest.Config) -> Cluster:
    """One Kafka cluster for all tests; `str()` of it is its bootstrap servers."""
    return _pool(pytestconfig).shared(_default(pytestconfig))


@pytest.fixture
def kafka(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A Kafka cluster for this test alone, unless its mark says that it shares one; `str()` of it
    is its bootstrap servers.
    """
    pool, (wanted, isolation) = _pool(request.config), _wanted(request.node)
    if isolation == "snapshot":
        made = pool.take(wanted)
        yield made
        pool.give_back(made, wanted)
        return
    made = pool.shared(wanted)
    yield made
    if isolation == "names":
        for each in made.heal():
            warnings.warn(f"{request.node.name} left it to others: {each}", stacklevel=1)


def _clusters(item: pytest.Item) -> dict[str, Any]:
    """The test's clusters, by the names of their fixtures."""
    found = getattr(item, "funcargs", {})
    return {name: found[name] for name in sorted(_FIXTURES) if hasattr(found.get(name), "log_of")}


def _requests(item: pytest.Item, name: str, cluster: Any) -> list[tuple[str, str]]:
    """The last ones of its clients, and where all of them are."""
    from twisted_broker.testing.template_client import ClusterError

    factory: pytest.TempPathFactory = item.config._tmp_path_factory  # type: ignore[attr-defined]
    home = getattr(item, "funcargs", {}).get("tmp_path") or factory.mktemp("kafka")
    try:
        found = cluster.trace.requests()
        if not found:
            return []
        cluster.trace.save(home / f"{name}-trace")
    except (ClusterError, OSError):  # it died: its log says why
        return []
    lines = [str(each) for each in found[-_REQUESTS:]]
    title = f"requests of {name}'s clients (all: {home / f'{name}-trace'}.jsonl and .pcap)"
    return [(title, "\n".join(lines))]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Notes where the clusters' logs are when the test begins."""
    item.stash[_BEGAN] = {name: each.log_size for name, each in _clusters(item).items()}
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds what was logged to the report of a test that failed."""
    report = yield
    if report.when != "call":
        return report
    began = item.stash.get(_BEGAN, {})
    for name, cluster in _clusters(item).items():
        if report.failed:
            text = cluster.log_of(began.get(name, 0))[-_LOG_BYTES:]
            title = f"what {name} logged (--kafka-seed {_seed(item.config)})"
            report.sections.append((title, text))
        if report.failed or item.config.option.kafka_trace == "always":
            report.sections += _requests(item, name, cluster)
    return report
