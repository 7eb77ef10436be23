"""`python -m tests.hostile [HOST:PORT]`: fires the corpus; without an address at a broker of ours,
on a listener of each kind. `--help` says what it takes.
"""

from __future__ import annotations

import argparse
import resource
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.hostile import own
from tests.hostile.classes import CLASSES
from tests.hostile.run import Found, markdown, run
from tests.hostile.target import Address, Target


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("address", metavar="HOST:PORT", nargs="?", help="a Kafka broker")
    parser.add_argument("--tls", action="store_true", help="over TLS; wants --ca")
    parser.add_argument("--ca", default="", help="PEM with the authority of its certificate")
    parser.add_argument("--mechanism", default="", help="PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512")
    parser.add_argument("--user", default="")
    parser.add_argument("--password", default="")
    parser.add_argument("--ordinary", action="store_true", help="the user may not act as a broker")
    parser.add_argument("--pid", type=int, help="the server's process: its memory is measured")
    parser.add_argument("--log", type=Path, help="the server's log: no unhandled error in it")
    parser.add_argument("--markdown", type=Path, help="where the table goes")
    parser.add_argument("--only", action="append", choices=CLASSES, help="this class; repeatable")
    parser.add_argument("--brief", action="store_true", help="little of each class")
    given = parser.parse_args()
    if given.tls != bool(given.ca):
        parser.error("--tls and --ca come together")
    if bool(given.mechanism) != bool(given.user):
        parser.error("--mechanism, --user and --password come together")
    host, _, port = (given.address or "host:0").rpartition(":")
    if not host or not port.isdigit():
        parser.error("HOST:PORT, please")
    return given


def fire(given: argparse.Namespace, address: Address) -> list[Found]:
    return run(
        [(name, CLASSES[name]) for name in given.only or CLASSES],
        Target(address),
        pid=given.pid,
        log=given.log,
        whole=not given.brief,
        ordinary=given.ordinary,
        said=lambda text: print(text, flush=True),
    )


def fire_at_ours(given: argparse.Namespace) -> dict[str, list[Found]]:
    tables = {}
    with TemporaryDirectory(prefix="hostile-") as directory:
        broker = own.start(Path(directory))
        assert broker.process is not None
        given.pid, given.log = broker.process.pid, broker.log
        try:
            for listener in own.LISTENERS:
                print(f"== {listener}", flush=True)
                given.ordinary = listener != "PLAINTEXT"
                tables[listener] = fire(given, own.address(broker, listener))
        finally:
            broker.stop()
    return tables


def main() -> int:
    given = arguments()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if given.address:
        host, _, port = given.address.rpartition(":")
        login = (given.mechanism, given.user, given.password)
        tables = {given.address: fire(given, Address(host, int(port), given.ca, *login))}
    else:
        tables = fire_at_ours(given)
    if given.markdown:
        pages = (f"### {name}\n\n{markdown(found)}" for name, found in tables.items())
        given.markdown.write_text("\n".join(pages))
    everything = [each for found in tables.values() for each in found]
    bad = sum(len(each.violations) for each in everything)
    print(f"{len(everything)} classes, {bad} violations")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
