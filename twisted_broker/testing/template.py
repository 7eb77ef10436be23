"""The process from which clusters of tests are forked.

Owns `serve`: it waits for a test's process, and forks a cluster for each that is wanted.

1. What a cluster needs is imported once. A fork of it is ready in a few hundredths of a second of
   the processor, where a process of its own needs half a second.
2. Before the first fork it only imports. Idle later, it runs a cluster in memory on a clock of
   its own, which makes the codecs, and freezes what there is: later forks are cheaper still.
3. It has no reactor: each cluster makes its own, after the fork.
4. It ends when the other end of its socket is closed, whoever closed it; so does each cluster.

Ring 2. Source: our own. Not here: what a cluster does (`cluster_process.py`), the test's side
(`template_client.py`).
"""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import socket
from contextlib import suppress
from typing import NoReturn

from twisted_broker import garbage_collection

_SET_CHILD_SUBREAPER = 36
# The first cluster starts meanwhile: it has the processor to itself.
_IDLE_SECONDS = 0.2


def serve(descriptor: int) -> NoReturn:
    """`descriptor`: of the socket to the test's process, which sends a byte for each cluster, with
    two descriptors: the cluster's socket and its log file.
    """
    # Ctrl-C is for the test: it ends us by closing the socket, once its tests are torn down.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Nobody waits for a cluster that ended.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    _adopt_orphans()
    _load()
    requests = socket.socket(fileno=descriptor)
    is_warm = False
    while True:
        if not is_warm and not select.select([requests], [], [], _IDLE_SECONDS)[0]:
            is_warm = True
            _warm()
        wanted, descriptors, _, _ = socket.recv_fds(requests, 1, 2)
        if not wanted:
            os._exit(0)
        if os.fork() == 0:
            requests.close()
            from twisted_broker.testing.cluster_process import run

            run(*descriptors)
        for each in descriptors:
            os.close(each)


def _adopt_orphans() -> None:
    """A snapshot outlives the process that it was taken of. In a container nobody else may wait for
    what it leaves.
    """
    with suppress(OSError, AttributeError):  # Linux only
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _load() -> None:
    """What every cluster imports: most of a start. Nothing is collected meanwhile: of 70,000
    objects 400 are garbage, and to look for them takes a tenth of the start.
    """
    gc.disable()
    from twisted_broker.testing import cluster_process

    cluster_process.load()
    garbage_collection.spare_start()
    gc.enable()


def _warm() -> None:
    from twisted_broker.testing.warm_up import warm_up

    warm_up()
    gc.collect()
    gc.freeze()
