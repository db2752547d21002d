"""Who may ask: the Host, the Origin and the token of every request, and the headers of every answer.

A page of another site may send requests to this machine, and with its own name rebound to 127.0.0.1 it may even read
the answers. Both carry names that are not ours: an Origin in the first case, a Host in the second.
"""

import hmac
import ipaddress
import json
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from privet.errors import InvalidValue

COOKIE = "privet_token"
LEAST_TOKEN = 16  # characters
HEADERS = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
    "object-src 'none'",
    "x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin", "cross-origin-resource-policy": "same-origin",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """What is let in: the names that this server answers to, and the token, if one is needed."""

    names: frozenset[str]
    any_address: bool = False  # any IP address as Host: rebinding needs a name
    token: str | None = None

    def knows(self, host: str) -> bool:
        """Whether the Host header names this server, with any port."""
        name = hostname(host)
        return name is not None and (name in self.names or (self.any_address and _address(name) is not None))

    def opens(self, offered: Iterable[str]) -> bool:
        """Whether one of these is the token, compared in constant time; always, if none is needed."""
        if self.token is None:
            return True
        token = self.token.encode()
        return any(hmac.compare_digest(token, word.encode("utf-8", "surrogateescape")) for word in offered)


def make_door(host: str, token: str | None) -> Door:
    """The door of a server bound to `host`: without a token on loopback, with one (made here if None) elsewhere.

    >>> make_door("127.0.0.1", None).knows("localhost:8000"), make_door("127.0.0.1", None).knows("evil.example:8000")
    (True, False)
    >>> make_door("0.0.0.0", None).token is None
    False

    Raises:
        InvalidValue: the token is short enough to be guessed, or cannot stand in a header.
    """
    if token is not None and (len(token) < LEAST_TOKEN or not all("!" <= c <= "~" and c not in '",;\\' for c in token)):
        raise InvalidValue(
            f'token must have at least {LEAST_TOKEN} letters, digits or signs other than " , ; \\. A short one can be '
            "guessed. Leave it out to have one made."
        )
    loopback = {"localhost", "127.0.0.1", "::1"}
    if is_loopback(host):
        return Door(names=frozenset(loopback | {host.lower()}), token=token)
    names = loopback | {host.lower(), socket.gethostname().lower()}
    return Door(names=frozenset(names), any_address=True, token=token or secrets.token_urlsafe(32))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    found = _address(host)
    return host.lower() == "localhost" if found is None else found.is_loopback


def hostname(host: str) -> str | None:
    """The name in a Host header without its port, in small letters; None if it is not one."""
    name, _, port = host.rpartition(":") if not host.endswith("]") and ":" in host else (host, "", "")
    if port and not port.isdecimal():
        return None
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
    elif ":" in name:
        return None
    return name.lower() or None


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


# --- in front of the application --------------------------------------------------------------------
class Guard:
    """ASGI: refuses what may not come in, and puts the headers on every answer."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app, self._door = app, door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        headers = Headers(scope=scope)
        refusal = refusal_reason(self._door, headers)
        if refusal is not None:
            await _send_error(sealed, *refusal)
        elif not self._door.opens(_offered_tokens(headers)):
            await self._accept_token(scope, sealed)
        else:
            await self._app(scope, receive, sealed)

    async def _accept_token(self, scope: Scope, send: Send) -> None:
        """The token in the page's address becomes a cookie, and the address is cleaned; all else is turned away."""
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        if scope["path"] == "/" and scope["method"] == "GET" and self._door.opens(given):
            cookie = f"{COOKIE}={self._door.token}; HttpOnly; SameSite=Strict; Path=/"
            headers = [(b"location", b"/"), (b"set-cookie", cookie.encode())]
            await send({"type": "http.response.start", "status": 303, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
            return
        await _send_error(send, 401, "the token is missing or wrong. Open the address that `privet serve` printed.")


def refusal_reason(door: Door, headers: Headers) -> tuple[int, str] | None:
    """The status and the reason, if the request comes from elsewhere."""
    hosts = headers.getlist("host")
    if len(hosts) != 1 or not door.knows(hosts[0]):
        return 421, "this server does not go by that name. Use the address that `privet serve` printed."
    origins = headers.getlist("origin")
    if any(origin.lower() not in (f"http://{hosts[0]}".lower(), f"https://{hosts[0]}".lower()) for origin in origins):
        return 403, "the request comes from another site."
    is_foreign = headers.get("sec-fetch-site", "none") in ("cross-site", "same-site")
    if is_foreign and headers.get("sec-fetch-mode") != "navigate":
        return 403, "the request comes from another site."
    return None


def _offered_tokens(headers: Headers) -> list[str]:
    """What could be the token: the word after Bearer, and the cookie."""
    kind, _, word = headers.get("authorization", "").partition(" ")
    found = [word.strip()] if kind.lower() == "bearer" else []
    try:
        cookies = SimpleCookie(headers.get("cookie", ""))
    except CookieError:
        return found
    return [*found, *([cookies[COOKIE].value] if COOKIE in cookies else [])]


async def _send_error(send: Send, status: int, reason: str) -> None:
    body = json.dumps({"error": reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
