"""Who may do what."""

from __future__ import annotations

import pytest
from support.serving import Client, pictures, serving, tensor

from neotta.deploy.serve.guard import check_exposure, is_loopback
from neotta.deploy.serve.settings import Settings, camera_name, durability, model_name
from neotta.errors import OptionError

KEY, LOOK = "a key of sixteen characters", "another key, to look only"
BODY = {"inputs": [tensor(pictures(1))]}
INFER = "/v2/models/small/infer"


@pytest.fixture(scope="module")
def client():
    with serving(key=KEY, read_key=LOOK) as client:
        yield client


def test_a_key_is_needed_for_all_but_health(client):
    stranger = Client(client.port)
    assert stranger.get("/v2/health/live")[0] == 200
    for status, answer in (stranger.get("/v2/models/small"), stranger.post(INFER, BODY), stranger.get("/nothing")):
        assert (status, list(answer)) == (401, ["error"])
    assert Client(client.port, KEY + "x").get("/v2")[1]["error"] == "the key is wrong"
    assert client.post(INFER, BODY)[0] == 200
    assert stranger.get("/v2", **{"X-Api-Key": KEY})[0] == 200


def test_the_second_key_may_only_look(client):
    looking = Client(client.port, LOOK)
    assert looking.get("/v2/models/small")[0] == 200
    status, answer = looking.post(INFER, BODY)
    assert (status, answer["error"]) == (403, "this key is read-only")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Host": "evil.example"}, 421),
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
        check_exposure("0.0.0.0", Settings())
    check_exposure("0.0.0.0", Settings(key=KEY))
    check_exposure("127.0.0.1", Settings())
    for wrong in (Settings(key="short"), Settings(key=KEY, read_key=KEY), Settings(key="ü" * 20)):
        with pytest.raises(OptionError, match="key"):
            check_exposure("127.0.0.1", wrong)
    with pytest.raises(OptionError, match="read-only key needs a key"):
        Settings(read_key=LOOK)
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


def test_names_and_durations():
    assert model_name("timm:vit_tiny_patch16_224.augreg") == "vit_tiny_patch16_224.augreg"
    assert model_name("hf:google/vit base") == "vit-base"
    assert model_name("models/fog.onnx") == "fog"
    assert model_name("/") == "model"
    assert (durability("batch"), durability("2.5")) == (0.0, 2.5)
    for wrong in ("", "0", "-1", "nan", "daily"):
        with pytest.raises(OptionError, match="--durable"):
            durability(wrong)
    assert (camera_name(None), camera_name(7), camera_name("Tür 3")) == ("default", "7", "Tür 3")
    for wrong in ("", " a", "a\0", 1.5, True, ["a"], "x" * 101):
        with pytest.raises(ValueError, match="printable"):
            camera_name(wrong)
