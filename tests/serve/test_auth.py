"""Who may do what."""

from __future__ import annotations

import pytest
from support.serving import Client, pictures, serving, tensor

from neotta.cli.serve import model_name
from neotta.deploy.serve.auth import Keys, check_exposure, is_loopback
from neotta.deploy.serve.settings import RequestError, Settings, stream_id
from neotta.errors import OptionError

KEY = "a key of sixteen characters"
BODY = {"inputs": [tensor(pictures(1))]}
INFER = "/v2/models/small/infer"


@pytest.fixture(scope="module")
def client():
    with serving(key=KEY) as client:
        yield client


def test_a_key_is_needed_for_all_but_health(client):
    stranger = Client(client.port)
    for path in (
        "/v2/health/live",
        "/v2/health/ready",
        "/",
        "/camera/gate",
        "/static/app.js",
        "/openapi.json",
    ):
        assert stranger.get(path)[0] == 200
    for path in ("/streams", "/streams/a", "/metrics", "/events", "/pictures/a", "/states/a", "/v2/health/live/x"):
        assert stranger.get(path)[0] == 401
    for status, answer in (stranger.get("/v2/models/small"), stranger.post(INFER, BODY), stranger.get("/nothing")):
        assert (status, list(answer)) == (401, ["error"])
    assert Client(client.port, KEY + "x").get("/v2")[1]["error"] == "the key is wrong"
    assert client.post(INFER, BODY)[0] == 200
    assert stranger.get("/v2", **{"X-Api-Key": KEY})[0] == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://evil.example"}, 403),
        ({"Host": "localhost:8000", "Origin": "http://localhost:8001"}, 403),  # another server on this machine
        ({"Host": "localhost:8000", "Origin": "http://localhost"}, 403),
        ({"Host": "localhost:8000", "Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Host": "evil.example"}, 421),
        ({"Host": "[::1].evil"}, 421),
        ({"Host": "[::1]:evil"}, 421),
        ({"Host": "[::1]:8000", "Origin": "http://[::1]:8000"}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Host": "localhost:8000", "Origin": "http://localhost:8000"}, 200),
    ],
)
def test_pages_of_other_sites_are_refused(headers, status):
    with serving() as client:
        found, answer = client.post(INFER, BODY, **headers)
        assert found == status, answer
        assert "Access-Control-Allow-Origin" not in client.ask("GET", "/v2", headers={"Origin": "https://x.example"})[1]


def test_a_host_that_others_reach_needs_a_key():
    with pytest.raises(OptionError, match="needs a key"):
        check_exposure("0.0.0.0", Keys())
    check_exposure("0.0.0.0", Keys(KEY))
    check_exposure("127.0.0.1", Keys())
    for wrong in ("short", "ü" * 20):
        with pytest.raises(OptionError, match="at least 16 printable"):
            Keys(wrong)
    assert KEY not in repr(Settings(key=KEY))


@pytest.mark.parametrize(
    ("host", "alone"),
    [
        *((host, True) for host in ("127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost")),
        *((host, False) for host in ("0.0.0.0", "::", "192.168.0.4", "example.org", "127.0.0.1.evil")),
    ],
)
def test_loopback(host, alone):
    assert is_loopback(host) is alone


def test_names():
    assert model_name("timm:vit_tiny_patch16_224.augreg") == "vit_tiny_patch16_224.augreg"
    assert model_name("hf:google/vit base") == "vit-base"
    assert model_name("models/fog.onnx") == "fog"
    assert model_name("/") == "model"
    assert (stream_id(None), stream_id(7), stream_id("Tür 3")) == ("default", "7", "Tür 3")
    for wrong in ("", " a", "a\0", "x" * 101, "..", "\ud800"):
        with pytest.raises(RequestError, match="printable"):
            stream_id(wrong)
    for wrong in ({"name": "a/b"}, {"durable": -1.0}, {"limits": {"rows": 0}}, {"port": 80}):
        with pytest.raises(OptionError):
            Settings.make("serve", wrong)
