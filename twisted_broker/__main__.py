"""`twisted-broker` and `python -m twisted_broker`: a broker in the foreground, with the options of
`twistd -n replog`. A daemon, or another reactor, is started by `twistd`.

Ring 2.
"""

from __future__ import annotations

import sys

from twisted.scripts import twistd

from twisted_broker.tap import Options


def main() -> None:
    """Returns when the broker has stopped."""
    Options.alone = "Usage: twisted-broker [options]"
    sys.argv[1:1] = ["--nodaemon", "--pidfile=", "replog"]
    twistd.run()


if __name__ == "__main__":
    main()
