"""Ports of the loopback for servers that tests start: each port has one owner."""

import fcntl
import os
import random
import socket
from pathlib import Path
from tempfile import gettempdir

PORTS = range(20_000, 30_000)
"""Below the ports that the system gives to clients, and to servers that ask for port 0."""

_owned: dict[int, int] = {}
"""The descriptor of the locked file of each port. A lock ends with this process."""


def free_port() -> int:
    """Reserve a port that nobody listens on, for as long as this process lives.

    A port that a test gets from the system, and gives back so that its server can take it, may be
    given to another test, or to any client, before the server listens. A server may be started
    again on a reserved port, or never be started on it.
    """
    folder = Path(gettempdir()) / f"agent-pipeline-test-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        if port in _owned:
            continue
        file = os.open(folder / str(port), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:  # another process owns the port or listens on it
            os.close(file)
            continue
        _owned[port] = file
        return port
    raise AssertionError(f"no port of {PORTS} is free")
