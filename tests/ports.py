"""Ports for servers in processes of their own, which cannot be asked for a port that is free."""

import itertools
import os
import socket

# Linux takes the ports of clients, and those of whoever asks for any, from 32768 on: one of these
# could be given away between the look and the server's start.
FIRST, COUNT = 20_000, 12_000

_numbers = itertools.count(101 * os.getpid())  # processes that test side by side begin apart


def free_port() -> int:
    """A port on which nobody listens now, another one each time."""
    for number in itertools.islice(_numbers, COUNT):
        port = FIRST + number % COUNT
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError(f"no port is free from {FIRST} on")
