"""Tests and notebooks run with the network refused, and the guard that refuses it works."""

import socket

import pytest

REACH_OUT = """
import socket
try:
    {attempt}
    print("reached")
except PermissionError as error:
    print("refused:", error)
"""


@pytest.fixture
def guard(root):
    return {"PYTHONPATH": str(root / "tests" / "offline")}


@pytest.mark.parametrize(
    "attempt",
    [
        "socket.create_connection(('192.0.2.1', 80), timeout=1)",
        "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))",
        "socket.getaddrinfo('example.org', 443)",
        "socket.gethostbyname('example.org')",
    ],
)
def test_leaving_the_machine_is_refused(run_python, guard, attempt):
    done = run_python("-c", REACH_OUT.format(attempt=attempt), **guard)
    assert done.stdout.startswith("refused: the tests run without a network"), done.stderr


def test_this_machine_can_be_reached(run_python, guard):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        attempt = f"socket.create_connection(('localhost', {port}), timeout=5)"
        done = run_python("-c", REACH_OUT.format(attempt=attempt), **guard)
    assert done.stdout == "reached\n", done.stderr
