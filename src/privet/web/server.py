"""The server: uvicorn, with time limits for clients that dawdle."""

import asyncio
import errno
import socket
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from privet.errors import InvalidValue
from privet.web.app import application
from privet.web.guard import Door

MOST_CONNECTIONS = 64
PATIENCE = 10.0  # seconds without a whole request
LONGEST = 120.0  # seconds for one answer, until the last byte of it is taken
LOOK = 0.5


class Hurried(H11Protocol):
    """HTTP that hangs up on a client who holds a connection and neither asks nor listens."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since, self._was_busy = self.loop.time(), False
        self._watch()

    def _watch(self) -> None:
        if self.transport.is_closing():
            return
        busy = self.cycle is not None and not self.cycle.response_complete
        now = self.loop.time()
        if busy != self._was_busy:
            self._since, self._was_busy = now, busy
        if now - self._since > (LONGEST if busy else PATIENCE):
            self.transport.abort()
            return
        self.loop.call_later(LOOK, self._watch)


def bind_socket(host: str, port: int) -> socket.socket:
    """A socket on the host and port; port 0 takes a free one.

    Raises:
        InvalidValue: the port is taken or not allowed, or the host is not of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(address)
            found.listen(MOST_CONNECTIONS)  # who comes before the server is ready waits
        except OSError:
            found.close()
            raise
    except (OSError, UnicodeError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        is_elsewhere = isinstance(error, OSError) and error.errno == errno.EADDRNOTAVAIL
        if is_elsewhere or isinstance(error, socket.gaierror | UnicodeError):
            raise InvalidValue(
                f"host={host!r}: cannot listen: {reason}. Give an address of this machine: --host 127.0.0.1."
            ) from None
        raise InvalidValue(f"host={host!r}, port={port}: cannot listen: {reason}. Choose another --port.") from None
    return found


def server(*, door: Door, runs: Path) -> uvicorn.Server:
    """A server that is ready to `run(sockets=[bound(host, port)])`."""
    config = uvicorn.Config(
        application(door=door, runs=runs), http=Hurried, ws="none", loop="asyncio", lifespan="off", log_level="error",
        access_log=False, server_header=False, proxy_headers=False, limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=5, timeout_graceful_shutdown=2,
    )  # fmt: skip
    return uvicorn.Server(config)


def page_address(door: Door, host: str, port: int) -> str:
    """What to open in a browser; with the token, if one is needed."""
    named = f"[{host}]" if ":" in host else host
    if host in ("0.0.0.0", "::"):
        named = socket.gethostname()
    query = "" if door.token is None else f"?token={door.token}"
    return f"http://{named}:{port}/{query}"
