"""Refuses every connection that leaves this machine, in every Python that starts with it.

`python -m tutorial_lib test` puts this folder on PYTHONPATH, so that tests, kernels and their
children run without a network. Blind to programs that are not Python, and to sockets that an
extension module opens by itself.
"""

import socket
import sys

_NAMES = {"localhost", "0.0.0.0", "::", "::1", "", None}


def _is_here(host):
    host = host.decode() if isinstance(host, bytes) else host
    return host in _NAMES or host.startswith("127.") or host == socket.gethostname()


def _refuse(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        address = arguments[1]
        if not isinstance(address, tuple):  # a Unix socket, or one connected before
            return
        host = address[0]
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = arguments[0]
    else:
        return
    if not _is_here(host):
        raise PermissionError(f"the tests run without a network, and {host} was asked for")


sys.addaudithook(_refuse)
