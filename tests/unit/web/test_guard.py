"""Who is let in: names, origins, tokens."""

from pathlib import Path

import pytest
from starlette.datastructures import Headers

from privet.errors import InvalidValue
from privet.web.guard import COOKIE, HEADERS, hostname, make_door, refusal_reason
from privet.web.server import page_address
from web_server import CONTROLS, serving

TOKEN = "a-token-of-some-length"


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("localhost", "localhost"), ("LOCALHOST:80", "localhost"), ("[::1]:80", "::1"), ("[::1]", "::1"), ("", None),
        ("127.0.0.1:1:2", None), ("a:b", None), (":80", None), ("::1", None),
    ],
)  # fmt: skip
def test_the_name_in_a_host_header(host: str, name: str | None) -> None:
    assert hostname(host) == name


@pytest.mark.parametrize(
    ("bound", "host", "known"),
    [
        ("127.0.0.1", "127.0.0.1:8765", True),
        ("127.0.0.1", "localhost:9000", True),  # a tunnel may have another port
        ("127.0.0.1", "[::1]:8765", True),
        ("127.0.0.1", "evil.example:8765", False),
        ("127.0.0.1", "127.0.0.1.evil.example", False),
        ("127.0.0.1", "localhost.evil.example", False),
        ("127.0.0.1", "192.168.1.5", False),
        ("0.0.0.0", "192.168.1.5:8765", True),  # rebinding needs a name
        ("0.0.0.0", "evil.example:8765", False),
        ("planner.lab", "planner.lab:8765", True),
    ],
)
def test_only_our_own_names_are_known(bound: str, host: str, known: bool) -> None:
    assert make_door(bound, None).knows(host) == known


def test_off_this_machine_there_is_always_a_token() -> None:
    assert make_door("127.0.0.1", None).token is None
    made = {make_door(host, None).token for host in ("0.0.0.0", "::", "192.168.1.5", "planner.lab")}
    assert len(made) == 4
    assert all(token is not None and len(token) >= 40 for token in made)
    door = make_door("0.0.0.0", TOKEN)
    assert door.opens([TOKEN])
    assert not door.opens([])
    assert not door.opens(["", TOKEN[:-1], TOKEN + "x", "é\udcff"])
    assert page_address(door, "192.168.1.5", 80) == f"http://192.168.1.5:80/?token={TOKEN}"


@pytest.mark.parametrize("token", ["short", "x" * 15, "has a blank in the middle", "semi;colon;semi;colon", "é" * 20])
def test_a_token_that_can_be_guessed_or_not_be_sent_is_refused(token: str) -> None:
    with pytest.raises(InvalidValue, match="token must have at least 16"):
        make_door("127.0.0.1", token)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, None),
        ({"origin": "http://localhost:1"}, None),
        ({"origin": "http://localhost:2"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, None),  # a link to the page
        ({"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}, None),
        ({"host": "evil.example"}, 421),
    ],
)
def test_another_site_is_refused(headers: dict[str, str], status: int | None) -> None:
    found = refusal_reason(make_door("127.0.0.1", None), Headers({"host": "localhost:1", **headers}))
    assert (found and found[0]) == status


def test_two_hosts_or_none_are_refused() -> None:
    door = make_door("127.0.0.1", None)
    for raw in ([], [(b"host", b"localhost"), (b"host", b"localhost")]):
        found = refusal_reason(door, Headers(raw=raw))
        assert found is not None
        assert found[0] == 421


def test_the_token_opens_and_leaves_the_address(tmp_path: Path) -> None:
    with serving(tmp_path, make_door("127.0.0.1", TOKEN)) as client:
        for path in ("/", "/api/options", "/static/page.js", "/?token=wrong", f"/api/options?token={TOKEN}"):
            answer = client.get(path)
            assert answer.status == 401
            assert "token" in answer.json()["error"]
        assert client.post("/api/plan", CONTROLS).status == 401
        first = client.get(f"/?token={TOKEN}")
        assert (first.status, first.headers["location"]) == (303, "/")
        cookie = first.headers["set-cookie"]
        assert cookie.startswith(f"{COOKIE}={TOKEN};")
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert client.get("/", cookie=f"a=b; {COOKIE}={TOKEN}").status == 200
        assert client.get("/", cookie=f"{COOKIE}={TOKEN[:-1]}").status == 401
        assert client.get("/api/options", authorization=f"Bearer {TOKEN}").status == 200
        assert client.get("/api/options", authorization="Bearer " + TOKEN[:-1]).status == 401
        assert client.get("/", cookie=f"{COOKIE}={TOKEN}", host="evil.example").status == 421


def test_every_answer_has_the_headers(tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        for answer in (
            client.get("/"),
            client.get("/none"),
            client.get("/", host="evil.example"),
            client.get("/api/runs"),
        ):
            assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
            assert "access-control-allow-origin" not in answer.headers
