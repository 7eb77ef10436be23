"""`twistd replog`: options, and the service made of them.

1. Values come from Kafka's sample file, or from `--config`, then `--set`, then the options; each
   later one wins.
2. What is wrong is said in one line before anything is opened.
3. Connections never take the descriptors that segments need: a flood of them must not look like a
   failing disk (`net/connection_limits.py`).
4. The first SIGTERM, SIGINT or SIGHUP begins an orderly stop; the next ones hasten it. A process
   that was started to outlive its terminal (`nohup`: SIGHUP is ignored) continues to ignore it.
5. Time is monotonic: the reactor's `seconds` becomes `time.monotonic`, so that a step of the wall
   clock moves no timer.

Ring 2: it gives brokers their reactor, as `embedded.py` does. Source: `twisted.application`;
Kafka's server.properties.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator
from functools import cache, partial
from random import Random
from typing import TYPE_CHECKING, Any

from twisted.internet.error import ReactorNotRunning
from twisted.logger import Logger
from twisted.python.usage import Options as UsageOptions
from twisted.python.usage import UsageError

from twisted_broker import __version__, garbage_collection
from twisted_broker.java_numbers import is_digits
from twisted_broker.log_output import LogOptionError, parse_levels, use_json
from twisted_broker.operating_system import check_system
from twisted_broker.reactor_watch import ReactorWatch, WatchedClock
from twisted_broker.settings import ConfigError
from twisted_broker.start_checks import (
    StartError,
    check_first_user,
    check_machine,
    check_options,
    check_run_file,
    read_values,
)
from twisted_broker.systemd import InheritedSockets, ServiceManager

if TYPE_CHECKING:
    from twisted_broker.broker_config import BrokerConfig
    from twisted_broker.broker_service import BrokerService

check_system()
import resource  # noqa: E402  not on Windows

MEMORY = "memory"
_logger = Logger(namespace="replog")
_MOST_BROKERS = 100
IN_MEMORY = "/memory"
_RESERVE = 16
_UNLIMITED, _USUAL_LIMITS = 1 << 20, (65536, 10240, 4096)
_SELECT_LIMIT = 1024  # FD_SETSIZE: what `select` serves, whatever the process may open


class Options(UsageOptions):
    """A Kafka broker at HOST:PORT. Everything else is set by Kafka's settings."""

    optParameters = [
        ["port", "p", None, "Port for clients; 0 picks a free one (9092)."],
        ["host", None, None, "Address to listen on and to advertise to clients (127.0.0.1)."],
        [
            "data",
            "d",
            None,
            (
                "Directory of the logs, formatted on first use (./replog-data); 'memory' keeps "
                "all in memory."
            ),
        ],
        [
            "brokers",
            "b",
            "1",
            (
                "Brokers in this process (--processes: each in its own): ids 1 to N, ports from "
                "PORT on, directories broker-N; of three or more 1 to 3 are controllers, too."
            ),
        ],
        ["config", "c", None, "A server.properties of Apache Kafka."],
        [
            "cluster-id",
            None,
            None,
            "Cluster id; must be that of the directory once it is formatted.",
        ],
        ["run-file", None, None, "JSON file, written when ready: pid, cluster id, addresses."],
        [
            "log-level",
            None,
            None,
            "Lines from this level on (debug, info, warn, error); replog.replication=debug for one "
            "part, several with commas.",
        ],
    ]
    most_controllers = _MOST_BROKERS
    """How many of several brokers may be."""
    alone = ""
    """The synopsis of the program that starts nothing but a broker."""
    optFlags = [
        [
            "processes",
            None,
            "Each of --brokers in a process of its own, started again when it ends.",
        ],
        ["log-json", None, "Log one JSON object per line."],
        [
            "require-formatted",
            None,
            "Refuse log directories that were not formatted before (replog format).",
        ],
    ]

    def __init__(self) -> None:
        UsageOptions.__init__(self)
        self.settings: dict[str, str] = {}
        self.directories: tuple[str, ...] = ()
        self.levels: dict[str, str] = {}

    def getSynopsis(self) -> str:
        """Of `twistd replog`, or of the program of a broker alone."""
        return self.alone or UsageOptions.getSynopsis(self)

    def opt_version(self) -> None:
        """Print the version of twisted-broker and end."""
        print(f"twisted-broker {__version__}")
        raise SystemExit(0)

    def opt_set(self, assignment: str) -> None:
        """A setting, as name=value; may be repeated."""
        name, equals, value = assignment.partition("=")
        if not equals:
            raise UsageError(f"--set takes name=value, not {assignment!r}")
        self.settings[name.strip()] = value.strip()

    def parseOptions(self, options: Any = None) -> None:
        """What is wrong ends the program with one line, not with the list of all options."""
        try:
            UsageOptions.parseOptions(self, options)
        except UsageError as error:
            raise SystemExit(f"replog: {error}") from None

    def postOptions(self) -> None:
        self._check_log()
        port = self["port"]
        if port is not None and not (is_digits(port) and int(port) < 65536):
            raise UsageError(f"--port takes a number from 0 to 65535, not {port!r}")
        brokers = self["brokers"]
        if not (is_digits(brokers) and 1 <= int(brokers) <= _MOST_BROKERS):
            raise UsageError(f"--brokers takes a number from 1 to {_MOST_BROKERS}, not {brokers!r}")
        from twisted_broker.log.errors import CheckpointError

        try:
            self.broker_configs = self._configs(self._chosen(), int(brokers))
            self.broker_config = self.broker_configs[0]
            if self["processes"]:
                self._check_processes(int(brokers))
            if self["require-formatted"]:
                self.check_formatted()
            if self["run-file"] is not None:
                check_run_file(self["run-file"])
        except (CheckpointError, ConfigError, OSError, StartError) as error:
            raise UsageError(str(error)) from None

    def _check_processes(self, brokers: int) -> None:
        """Raises UsageError, StartError."""
        if brokers == 1:
            raise UsageError("--processes is for several brokers: give --brokers 2 or more, too")
        if self["data"] == MEMORY:
            raise UsageError(
                "--processes and --data memory contradict: what a process kept would be gone when "
                "it is started again; drop one"
            )

    def _controllers(self, chosen: dict[str, str], brokers: int) -> Collection[int]:
        """Those of several brokers that are controllers. Raises OSError."""
        from twisted_broker.local_quorum import controllers_of
        from twisted_broker.log.filesystem import OsFileSystem

        return controllers_of(chosen, min(brokers, self.most_controllers), OsFileSystem())

    def _with_ports(self, configs: list[BrokerConfig]) -> list[BrokerConfig]:
        """Several brokers know where their controllers are. Raises StartError."""
        from twisted_broker.local_quorum import with_ports, with_voters

        return with_voters(with_ports(configs) if self["processes"] else configs)

    def check_formatted(self) -> None:
        """Every log directory says whose it is. Raises UsageError, CheckpointError, OSError."""
        from twisted_broker.log.filesystem import OsFileSystem
        from twisted_broker.log.meta_properties import read_meta_properties

        if self["data"] == MEMORY:
            raise UsageError("--require-formatted and --data memory contradict: drop one")
        for config in self.broker_configs:
            for path in dict.fromkeys((*config.log_directories, config.metadata_directory)):
                if not os.path.isdir(path) or read_meta_properties(OsFileSystem(), path) is None:
                    raise UsageError(
                        f"{path} is not formatted: mount it, format it (replog format), or start "
                        "without --require-formatted"
                    )

    def _check_log(self) -> None:
        try:
            self.levels = parse_levels(self["log-level"]) if self["log-level"] else {}
            # None where no `twistd` is around it: tests, other programs.
            twistd: Any = getattr(self, "parent", None)
            if self["log-json"] and twistd is not None:
                use_json(twistd)
        except LogOptionError as error:
            raise UsageError(str(error)) from None

    def _configs(self, chosen: dict[str, str], brokers: int) -> list[BrokerConfig]:
        """One configuration per broker. Raises ConfigError."""
        from twisted_broker.broker_config import BrokerConfig
        from twisted_broker.config_validation import check_together
        from twisted_broker.net.listeners import check_sasl, plan_listeners

        if brokers == 1:
            configs = [BrokerConfig(chosen)]
        else:
            from twisted_broker.local_nodes import check_shared_roles, node_settings

            check_shared_roles(chosen)
            nodes, controllers = range(1, brokers + 1), self._controllers(chosen, brokers)
            configs = [BrokerConfig(node_settings(chosen, each, controllers)) for each in nodes]
            configs = self._with_ports(configs)
        if self["data"] != MEMORY:
            self.directories = BrokerConfig(chosen).log_directories
        check_together(configs[0])
        for config in configs:
            plan = plan_listeners(config)
            check_sasl(config, plan)
            protocols = plan.protocols.values()
            if any(protocol.uses_tls or protocol.uses_sasl for protocol in protocols):
                from twisted_broker.log.filesystem import OsFileSystem
                from twisted_broker.net.listener_security import check_tls

                files = OsFileSystem()
                if any(protocol.uses_tls for protocol in protocols):
                    check_tls(config, plan, files)
                check_first_user(config, plan, files)
        return configs

    def _chosen(self) -> dict[str, str]:
        check_options(self.settings, self["data"], self._changed_listeners())
        values = read_values(self["config"], self.settings, int(self["brokers"]))
        values["listeners"] = ",".join(self._listeners(values))
        if self["data"] is not None or not ("log.dirs" in values or "log.dir" in values):
            values["log.dirs"] = self._directory()
        return values

    def _directory(self) -> str:
        data = self["data"] or "replog-data"
        return IN_MEMORY if data == MEMORY else os.path.abspath(data)

    def _changed_listeners(self) -> Iterator[tuple[str, str]]:
        """(option, value) of what would change a listener of `--set`."""
        from twisted_broker.net.listeners import parse_endpoints

        given = {"listeners": self.settings.get("listeners", "")}
        if not given["listeners"]:
            return
        before = parse_endpoints("listeners", _listed(given["listeners"]))
        after = parse_endpoints("listeners", self._listeners(self.settings))
        for old, new in zip(before, after, strict=False):
            if old.host != new.host:
                yield "--host", new.host
            if old.port != new.port:
                yield "--port", str(new.port)

    def _listeners(self, values: dict[str, str]) -> list[str]:
        """The listeners with `--host` and `--port` in the broker's first one, and a controller's
        where one is needed.
        """
        from twisted_broker.net.listeners import parse_endpoints

        given = values.get("listeners") or "PLAINTEXT://127.0.0.1:9092"
        endpoints = parse_endpoints("listeners", _listed(given))
        names = [
            name.upper() for name in _listed(values.get("controller.listener.names", "CONTROLLER"))
        ]
        if not names:
            raise ConfigError("controller.listener.names", "", "the name of a listener")
        for index, each in enumerate(endpoints):
            if each.name not in names:
                host = self["host"] if self["host"] is not None else each.host
                port = int(self["port"]) if self["port"] is not None else each.port
                endpoints[index] = each._replace(host=host, port=port)
                break
        entries = [str(each) for each in endpoints]
        is_controller = "controller" in values.get("process.roles", "broker,controller")
        if is_controller and not any(each.name in names for each in endpoints):
            entries.append(f"{names[0]}://127.0.0.1:0")
        return entries


def _listed(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",") if entry.strip()]


def makeService(
    options: Options, when_ready: Callable[[BrokerService], None] = lambda service: None
) -> Any:
    """The broker of these options, as a service that `twistd` starts.

    Raises SystemExit where a port is taken, or a directory in use or of other brokers.
    """
    manager = ServiceManager(os.environ)
    manager.starting()
    try:
        inherited = InheritedSockets.of(os.environ)
    except StartError as error:
        raise SystemExit(f"replog: {error}") from None
    if options["processes"] and inherited:
        raise SystemExit("replog: --processes and a socket unit of systemd contradict: drop one")
    raise_file_limit()
    check_machine(options.broker_configs, options.directories, inherited)
    if options["processes"]:
        return _parent_of_processes(options, manager)
    garbage_collection.spare_start()
    _choose_reactor()
    from twisted.internet import reactor

    from twisted_broker.api import broker_loggers
    from twisted_broker.broker_service import BrokerService

    clock: Any = reactor
    broker_loggers.start_with(options.levels)
    clock.seconds = time.monotonic
    clock.callWhenRunning(_stop_on_hangup, clock)
    descriptors = file_limit(clock)
    watch = ReactorWatch(options.broker_config.integer("replog.reactor.slow.ms"))
    watch.install(clock)
    in_memory = options["data"] == MEMORY
    more: Any = {
        "cluster_id": options["cluster-id"],
        "run_file": options["run-file"],
        "reactor": clock,
        "descriptors": descriptors,
    }
    more["on_stop_again"] = partial(_stopping, clock, manager)

    def ready() -> None:
        _ready(watch, manager, service, clock)
        when_ready(service)

    more["when_ready"] = ready
    make_runtime = partial(
        production_runtime, clock, watch=watch, in_memory=in_memory, inherited=inherited
    )
    service: BrokerService
    if len(options.broker_configs) == 1:
        config = options.broker_config
        service = BrokerService(config, make_runtime(config), **more)
    else:
        from twisted_broker.local_cluster import LocalCluster

        service = LocalCluster(options.broker_configs, make_runtime, **more)
    return service


def _parent_of_processes(options: Options, manager: ServiceManager) -> Any:
    """What starts, watches and stops a process for each broker."""
    _choose_reactor()
    from twisted.internet import reactor

    from twisted_broker.process_cluster import ProcessCluster

    clock: Any = reactor
    clock.seconds = time.monotonic
    clock.callWhenRunning(_stop_on_hangup, clock)
    order = {
        "levels": options.levels,
        "cluster_id": options["cluster-id"],
        "require_formatted": bool(options["require-formatted"]),
        "reactor": type(clock).__module__,
    }
    service = ProcessCluster(
        options.broker_configs,
        order,
        run_file=options["run-file"],
        reactor=clock,
        on_stop_again=partial(_stopping, clock, manager),
        when_ready=lambda: manager.ready(service.who, clock),
    )
    return service


def _choose_reactor() -> None:
    """poll where there is no epoll, unless `twistd --reactor` chose: on macOS Twisted would take
    select, which loses connections beyond 1,024 descriptors.
    """
    if "twisted.internet.reactor" in sys.modules or hasattr(select, "epoll"):
        return
    if hasattr(select, "poll"):
        from twisted.internet import pollreactor

        pollreactor.install()


def file_limit(reactor: Any) -> int:
    """How many descriptors this process may use with this reactor."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _UNLIMITED if soft == resource.RLIM_INFINITY else soft
    return min(limit, _SELECT_LIMIT) if _uses_select(reactor) else limit


def _uses_select(reactor: Any) -> bool:
    made_in = sys.modules.get("twisted.internet.selectreactor")
    return made_in is not None and isinstance(reactor, made_in.SelectReactor)


def _stopping(
    reactor: Any, manager: ServiceManager, skip_controlled_shutdown: Callable[[], None]
) -> None:
    manager.stopping()
    _take_signals(reactor, skip_controlled_shutdown)


def _take_signals(reactor: Any, skip_controlled_shutdown: Callable[[], None]) -> None:
    """From now on the stop signals call `skip_controlled_shutdown`, in the reactor's thread."""
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(
                each, lambda number, frame: reactor.callFromThread(skip_controlled_shutdown)
            )


def _ready(watch: ReactorWatch, manager: ServiceManager, service: Any, reactor: Any) -> None:
    from twisted_broker.api import broker_loggers

    garbage_collection.settle()
    broker_loggers.apply()
    watch.started()
    manager.ready(service.who, reactor)


def _stop_on_hangup(reactor: Any) -> None:
    """A terminal that is closed stops the broker as SIGTERM does: Twisted leaves SIGHUP to the
    system, which kills.
    """
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda number, frame: reactor.callFromThread(_stop, reactor))


def _stop(reactor: Any) -> None:
    with contextlib.suppress(ReactorNotRunning):  # it is stopping already
        reactor.stop()


class MonotonicClock:
    """The reactor's timers with a clock that no step of the calendar moves: `reactor.seconds`
    is the program's, and not changed.
    """

    __slots__ = ("callLater", "seconds")

    def __init__(self, reactor: Any) -> None:
        self.seconds, self.callLater = time.monotonic, reactor.callLater


def production_runtime(
    reactor: Any,
    config: Any,
    watch: ReactorWatch,
    *,
    in_memory: bool,
    inherited: InheritedSockets | None = None,
) -> Any:
    """The world as it is: reactor, wall clock, sockets (some `inherited`), and the disk or
    memory.
    """
    from twisted_broker.interfaces import Runtime
    from twisted_broker.log.disk_worker import DiskThread
    from twisted_broker.net.network import SEND_BUFFER_BYTES, ReactorNetwork

    files: Any
    disk: Any
    cleaner: Any = None
    key_files: Any = None
    if in_memory:
        from twisted_broker.log.filesystem import OsFileSystem
        from twisted_broker.log.memory import InlineWorker, MemoryFileSystem

        key_files = OsFileSystem()
        files, disk = (
            MemoryFileSystem(lambda: time.time_ns() // 1_000_000),
            lambda directory: InlineWorker(),
        )
    else:
        from twisted_broker.log.filesystem import OsFileSystem

        _warn_of_missing_calls()
        files, disk = (
            OsFileSystem(_RESERVE),
            lambda directory: DiskThread(reactor.callFromThread, f"disk {directory}", watch),
        )

        def cleaner() -> Any:
            from twisted_broker.log.cleaner.worker_process import CleanerProcess

            return CleanerProcess(reactor.callFromThread)

    network = ReactorNetwork(
        reactor,
        backlog=config.integer("socket.listen.backlog.size"),
        send_buffer=_if_set(config, "socket.send.buffer.bytes", SEND_BUFFER_BYTES),
        receive_buffer=_if_set(config, "socket.receive.buffer.bytes", -1),
        watch=watch,
        inherited=(inherited or InheritedSockets()).take,
    )
    return Runtime(
        clock=WatchedClock(reactor, watch),
        wall_ms=lambda: time.time_ns() // 1_000_000,
        network=network,
        files=files,
        disk=disk,
        random=Random(),
        marks=watch,
        cleaner=cleaner,
        key_files=key_files,
    )


@cache
def _warn_of_missing_calls() -> None:
    """Once for the process."""
    from twisted_broker.log.filesystem import lacks

    if words := lacks():
        _logger.warn("{words}", words=words)


def _if_set(config: Any, name: str, otherwise: int) -> int:
    """A buffer size that somebody chose; else what was measured to be best here."""
    return int(config.integer(name)) if config.is_set(name) else otherwise


def raise_file_limit() -> int:
    """Raises the soft limit of open files as far as the system lets us, towards the hard one; gives
    what it is then.

    An unlimited hard limit may be no soft limit: macOS refuses that, and anything above its
    `kern.maxfilesperproc`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = [hard] if hard != resource.RLIM_INFINITY else [_UNLIMITED, *_USUAL_LIMITS]
    for limit in wanted:
        if soft == resource.RLIM_INFINITY or soft >= limit:
            break
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        except (ValueError, OSError):
            continue
        return limit
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft
