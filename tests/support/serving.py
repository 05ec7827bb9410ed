"""A real server on this machine, in a thread, and a plain client for it."""

import contextlib
import functools
import http.client
import json
import re
import subprocess
import sys
import threading
import time

import numpy as np
import torch

from neotta.cli.serve import listening
from neotta.deploy.serve.app import make_server
from neotta.deploy.serve.engine import TorchEngine
from neotta.deploy.serve.history import History
from neotta.deploy.serve.service import Service
from neotta.deploy.serve.settings import Limits, Settings
from support.small_model import network

SIZE = (3, 32, 32)


def small_engine(rule="neo-stream", folder=None, **options):
    return TorchEngine(network(), rule, folder=folder, **options)


class GatedEngine(TorchEngine):
    """Waits before each batch until it is let through."""

    def __init__(self, **options):
        self.gate, self.entered, self.sizes = threading.Event(), threading.Event(), []
        self.gate.set()
        super().__init__(network(), **options)
        self.sizes.clear()
        self.entered.clear()

    def _forward(self, images):
        self.entered.set()
        assert self.gate.wait(15)
        self.sizes.append(len(images))
        return super()._forward(images)


def in_background(count, work):
    """Run `work(index)` in as many threads; what comes back joins them and gives the results."""
    results = [None] * count

    def run(index):
        results[index] = work(index)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()

    def end():
        for thread in threads:
            thread.join(60)
        return results

    return end


@contextlib.contextmanager
def serving(engine=None, *, folder=None, host="127.0.0.1", limits=None, **settings):
    """Run a server until the block ends; what comes back is a `Client` with the service as an attribute."""
    engine = small_engine(folder=folder) if engine is None else engine
    chosen = Settings(**{"name": "small", "durable": 0.0, "grace": 60.0, "limits": limits or Limits(), **settings})
    service = Service(engine, chosen, History(folder))
    socket = listening(host, 0)
    server = make_server(service, host, socket.getsockname()[1])
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]})
    thread.start()
    client = Client(socket.getsockname()[1], chosen.key)
    client.service, client.server = service, server
    try:
        wait_until(lambda: server.started or not thread.is_alive())
        yield client
    finally:
        server.handle_exit(2, None)
        thread.join(30)
        assert not thread.is_alive(), "the server does not end"


def wait_until(true, seconds=20.0):
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.01)


class Client:
    def __init__(self, port, key=None):
        self.port, self.key = port, key
        self.url = f"127.0.0.1:{port}"

    def ask(self, method, path, body=None, headers=None):
        """Status, headers and body of an answer; JSON is read."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=90)
        key = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        try:
            connection.request(method, path, body, {**key, **(headers or {})})
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.headers.get_content_type() == "application/json":
            content = json.loads(content)
        return answer.status, answer.headers, content

    def get(self, path, **headers):
        return self.ask("GET", path, headers=headers)[::2]

    def post(self, path, body, **headers):
        content = json.dumps(body) if isinstance(body, (dict, list)) else body
        kind = {"Content-Type": "application/json"} if isinstance(body, (dict, list)) else {}
        return self.ask("POST", path, content, {**kind, **headers})[::2]

    def infer(self, images, *, name="small", outputs=(), **parameters):
        """Answer a batch by JSON: the outputs as arrays."""
        body = {"inputs": [tensor(images)], "parameters": parameters}
        if outputs:
            body["outputs"] = [{"name": each} for each in outputs]
        status, answer = self.post(f"/v2/models/{name}/infer", body)
        assert status == 200, answer
        return {each["name"]: np.array(each["data"]).reshape(each["shape"]) for each in answer["outputs"]}


def tensor(images, datatype="FP32", name="images"):
    return {"name": name, "datatype": datatype, "shape": list(images.shape), "data": images.reshape(-1).tolist()}


@functools.cache
def pictures(count=8, seed=0, shift=0.0):
    """Preprocessed images, (count, 3, 32, 32)."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(count, *SIZE, generator=generator) + shift).numpy().astype(np.float32)


def start(model, folder, *options, log="server.log", rows=64):
    """A server in a process of its own, with its state and its log in a folder, and a client for it."""
    path, config = folder / log, folder / "serve.toml"
    config.write_text(f'name = "small"\n[limits]\nrows = {rows}\n')
    words = [sys.executable, "-m", "neotta", "serve", model, "--config", config, "--port", "0", "--store", str(folder)]
    with path.open("w") as output:
        process = subprocess.Popen([*words, *options], stderr=output, stdout=output)
    wait_until(lambda: process.poll() is not None or "http://" in path.read_text(), 120)
    assert process.poll() is None, path.read_text()
    client = Client(int(re.search(r"http://127.0.0.1:(\d+)/", path.read_text())[1]))
    wait_until(lambda: _ready(client), 60)
    return process, client


def _ready(client):
    try:
        return client.get("/v2/health/ready")[0] == 200
    except OSError:
        return False
