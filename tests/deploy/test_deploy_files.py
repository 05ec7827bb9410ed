"""The files in deploy/: started where what they are for is installed, otherwise read."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import io
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from PIL import Image
from support.loopback import fetch, free_port, running

from neotta.data.handwritten import digits

yaml = pytest.importorskip("yaml", reason="needs the package pyyaml")
ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
KEY = {"Authorization": "Bearer a key of the test"}


def documents(name):
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def container():
    stateful, *_ = documents("kubernetes.yaml")
    return stateful["spec"]["template"]["spec"]["containers"][0]


# ---- nginx


class Backend(http.server.BaseHTTPRequestHandler):
    """Answers everything, and remembers what arrived."""

    protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.append((self.path, self.headers["X-Forwarded-For"]))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    do_GET = do_POST

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def backend():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Backend) as server:
        server.seen, server.daemon_threads = [], True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def proxy(backend, tmp_path):
    """The port of nginx with TLS, and that without it."""
    if shutil.which("nginx") is None or shutil.which("openssl") is None:
        pytest.skip("needs nginx and openssl (Debian: apt-get install nginx openssl)")
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "1"]
    subprocess.run([*words, "-keyout", "tls.key", "-out", "tls.crt"], cwd=tmp_path, check=True, capture_output=True)
    ports = free_port(), free_port()
    text = (DEPLOY / "nginx.conf").read_text()
    for old, new in {
        "/tmp/": f"{tmp_path}/",
        "listen 8443 ": f"listen 127.0.0.1:{ports[0]} ",
        "listen 8080;": f"listen 127.0.0.1:{ports[1]};",
        "server neotta:8000": f"server 127.0.0.1:{backend.server_port}",
        "/etc/nginx/tls/": f"{tmp_path}/",
        "rate=50r/s": "rate=5r/s",  # so that a slow machine is fast enough
        "client_header_timeout 5s": "client_header_timeout 1s",
        "worker_processes auto": "worker_processes 1",
    }.items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "nginx.conf").write_text(("" if os.geteuid() else "user root;\n") + text)  # reads the folder of a test
    words = ["nginx", "-c", tmp_path / "nginx.conf", "-p", tmp_path, "-e", tmp_path / "errors.log"]
    subprocess.run([*words, "-t"], check=True, capture_output=True)
    with running([*words, "-g", "daemon off;"], f"http://127.0.0.1:{ports[1]}/", seconds=20):
        yield ports


def secure(port):
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=trusting)


def status(connection, *arguments, **headers):
    connection.request(*arguments, headers=headers)
    answer = connection.getresponse()
    answer.read()
    return answer.status


def test_the_limits_of_nginx_bite(proxy, backend):
    port, plain = proxy
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", plain, timeout=20)) as connection:
        connection.request("GET", "/streams?a=1")
        answer = connection.getresponse()
        assert (answer.status, answer.headers["Location"]) == (308, "https://127.0.0.1/streams?a=1")
    with contextlib.closing(secure(port)) as connection:
        assert status(connection, "POST", "/classify", b"x" * 2_000_000, **{"X-Forwarded-For": "1.2.3.4"}) == 200
        assert backend.seen.pop() == ("/classify", "127.0.0.1")  # what a client says of itself does not count
        assert status(connection, "GET", "/metrics") == 404
        assert status(connection, "GET", "/" + "x" * 9000) == 414
    with contextlib.closing(secure(port)) as connection:
        connection.putrequest("POST", "/classify")
        connection.putheader("Content-Length", str(65 << 20))
        connection.endheaders()
        assert connection.getresponse().status == 413
    with socket.create_connection(("127.0.0.1", plain), timeout=20) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
        with pytest.raises(ConnectionResetError):  # after client_header_timeout
            slow.recv(100)
    with contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(contextlib.closing(secure(port))) for _ in range(25)]
        for connection in waiting:
            connection.putrequest("POST", "/classify")
            connection.putheader("Content-Length", "10")
            connection.endheaders()
        assert [connection.getresponse().status for connection in waiting[20:]] == [429] * 5
    assert backend.seen == []  # requests that are not complete never reach it
    with contextlib.closing(secure(port)) as connection:
        answers = [status(connection, "GET", "/") for _ in range(200)]
    assert set(answers[:50]) == {200}
    assert set(answers[50:]) == {200, 429}


def test_the_page_shows_lines_of_the_file():
    (shown,) = re.findall(r"```nginx\n(.*?)```", (ROOT / "docs" / "behind-a-proxy.md").read_text(), re.S)
    there = {line.split("#")[0].strip() for line in (DEPLOY / "nginx.conf").read_text().splitlines()}
    assert {line.strip() for line in shown.splitlines()} <= there


# ---- what the files say


@pytest.mark.slow
def test_every_way_to_start_is_one_that_neotta_accepts(tmp_path):
    (tmp_path / "key").write_text("a key of the test")
    ways = [
        json.loads(re.search(r"^CMD (.*)$", DOCKERFILE, re.M)[1]),
        documents("compose.yaml")[0]["services"]["neotta"]["command"],
        container()["args"],
    ]
    for number, words in enumerate(ways):
        places = {"/state": str(tmp_path / str(number)), "/run/secrets/key": str(tmp_path / "key")}
        words = [sys.executable, "-m", "neotta", "serve", *(places.get(word, word) for word in words), "--check"]
        keys = {} if "--key-file" in words else {"NEOTTA_KEY": "a key of the test"}
        done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **keys}, timeout=120)
        assert done.returncode == 0, done.stderr


def test_the_image_has_what_it_copies_and_does_not_run_as_root():
    copied = [word for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.M) for word in line.split()[:-1]]
    allowed = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert copied
    assert all((ROOT / name).exists() and f"!{name}" in allowed for name in copied)
    assert re.findall(r"^USER (.*)$", DOCKERFILE, re.M) == ["10001"]
    assert re.search(r"^ENTRYPOINT (.*)$", DOCKERFILE, re.M)[1] == '["neotta", "serve"]'


def test_compose_and_kubernetes_name_only_what_they_define():
    compose = documents("compose.yaml")[0]
    for service in compose["services"].values():
        assert set(service.get("secrets", [])) <= compose["secrets"].keys()
        for place in service["volumes"]:
            source = place.split(":")[0]
            assert source in compose["volumes"] or source == "./tls" or (DEPLOY / source).exists()
        assert all(
            port.startswith("127.0.0.1:") for port in service.get("ports", []) if "nginx" not in service["image"]
        )
    stateful, service, budget, policy = documents("kubernetes.yaml")
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    assert labels == stateful["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
    assert labels == budget["spec"]["selector"]["matchLabels"] == policy["spec"]["podSelector"]["matchLabels"]
    assert policy["spec"]["ingress"][0]["ports"][0]["port"] == container()["ports"][0]["name"]
    (grace,) = (each["value"] for each in container()["env"] if each["name"] == "NEOTTA_SERVE_GRACE")
    assert float(grace) < stateful["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    spec = stateful["spec"]["template"]["spec"]
    held = {volume["name"] for volume in spec["volumes"]}
    held |= {claim["metadata"]["name"] for claim in stateful["spec"]["volumeClaimTemplates"]}
    assert {mount["name"] for mount in container()["volumeMounts"]} == held
    assert stateful["spec"]["replicas"] == 1  # one server opens a folder
    assert service["spec"]["ports"][0]["targetPort"] == container()["ports"][0]["name"]


def test_prometheus_accepts_the_rules():
    (rules,) = (group["rules"] for group in documents("alerts.yml")[0]["groups"])
    assert len({rule["alert"] for rule in rules}) == len(rules)
    assert all(rule.keys() <= {"alert", "expr", "for", "annotations"} for rule in rules)
    assert documents("prometheus.yml")[0]["rule_files"] == ["alerts.yml"]
    if shutil.which("promtool") is not None:
        subprocess.run(["promtool", "check", "rules", DEPLOY / "alerts.yml"], check=True, capture_output=True)


def test_the_server_has_the_metrics_and_probes_that_are_asked_for(tmp_path):
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    words = [sys.executable, "-m", "neotta", "serve", "digits", "--port", str(port), "--store", str(tmp_path)]
    with running(words, f"{address}/v2/health/ready", env={**os.environ, "NEOTTA_KEY": "a key of the test"}):
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            fetch(address + container()[probe]["httpGet"]["path"])
        for number in range(40):
            file = io.BytesIO()
            Image.fromarray(digits().read(number)).save(file, "png")
            fetch(f"{address}/classify?stream=gate", file.getvalue(), **KEY)
        there = fetch(f"{address}/metrics", **KEY).decode()
    known = set(re.findall(r"^# TYPE (\w+) ", there, re.M)) | set(re.findall(r"^(\w+)[ {]", there, re.M))
    asked = set(re.findall(r"\bneotta_\w+", (DEPLOY / "alerts.yml").read_text()))
    assert asked
    assert asked <= known


def engine():
    """The command of a container engine that runs, or None."""
    for name in ("docker", "podman"):
        if shutil.which(name) and not subprocess.run([name, "info"], capture_output=True).returncode:
            return name
    return None


@pytest.mark.slow
def test_the_image_is_built_and_answers():
    command = engine()
    if command is None:
        pytest.skip("needs a container engine that runs (docker or podman)")
    build = [command, "build", "-q", "-f", DEPLOY / "Dockerfile", "-t", "neotta-test", ROOT]
    subprocess.run(build, check=True, timeout=1800)
    port = free_port()
    words = [command, "run", "--rm", "--read-only", "--tmpfs", "/tmp", "-e", "NEOTTA_KEY=a key of the test"]
    words += ["-p", f"127.0.0.1:{port}:8000", "neotta-test"]
    with running(words, f"http://127.0.0.1:{port}/v2/health/ready"):
        assert b"neotta_" in fetch(f"http://127.0.0.1:{port}/metrics", **KEY)
