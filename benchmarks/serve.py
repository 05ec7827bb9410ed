"""The server under load, on loopback, beside the bare batched loop in the same run.

Three limits: 64 cameras that send single images of 224 pixels to a ViT-Tiny, as binary tensors, are answered at 0.9 of
the speed of a loop over batches of 64 at least; adapting costs at most 1.05 of serving the plain model; memory does not
grow over many requests. Also: latency at half load, and 10,000 known cameras of which 200 are active.

python benchmarks/serve.py [--quick] [--requests N] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from neotta._files import atomic

CAMERAS = 64
WAYS = ("bare loop", "plain server", "adaptive server")


# ---- the servers, each in a process of its own


def model_of(kind):
    """A ViT-Tiny of timm, or a network that costs nothing."""
    import torch
    from torch import nn

    from neotta import LoadedModel, Preprocess
    from neotta._torchvision import guard

    torch.manual_seed(0)
    torch.set_num_threads(1)
    if kind == "vit":
        guard()
        import timm

        return LoadedModel(timm.create_model("vit_tiny_patch16_224").eval(), Preprocess((224, 224)))
    return LoadedModel(nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(48, 10)).eval(), Preprocess((32, 32)))


def serve(kind, rule, folder, port):
    """Run a server until it is killed."""
    from neotta.deploy.serve.records import Records
    from neotta.deploy.serve.server import listening, make_server
    from neotta.deploy.serve.service import Service
    from neotta.deploy.serve.settings import Limits, Settings
    from neotta.deploy.serve.torch_engine import TorchEngine

    engine = TorchEngine(model_of(kind), rule, folder=None if rule == "none" else folder)
    service = Service(engine, Settings(name="model", limits=Limits(queue=4096, timeout=900.0)), Records(folder))
    socket = listening("127.0.0.1", 0)
    port.put(socket.getsockname()[1])
    make_server(service, "127.0.0.1", socket.getsockname()[1], log_level="error").run(sockets=[socket])


@contextlib.contextmanager
def server(kind, rule):
    """A server, and its port and process id."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        port = context.Queue()
        process = context.Process(target=serve, args=(kind, rule, folder, port), daemon=True)
        process.start()
        try:
            yield port.get(timeout=300), process.pid
        finally:
            process.terminate()
            process.join(60)


def bare(kind, size, orders, answers):
    """The loop that a server is compared with: told a number of batches, it answers how long they took."""
    import torch

    model = model_of(kind).model
    images = torch.from_numpy(np.random.default_rng(0).normal(size=(CAMERAS, 3, size, size)).astype(np.float32))
    while (batches := orders.get()) is not None:
        started, spent = time.perf_counter(), time.process_time()
        with torch.inference_mode():
            for _ in range(batches):
                model(images)
        answers.put((time.perf_counter() - started, time.process_time() - spent))


# ---- the clients


def request(camera, size, seed=0):
    """The bytes of a request with one image as a binary tensor."""
    image = np.random.default_rng(seed).normal(size=(1, 3, size, size)).astype("<f4").tobytes()
    head = {
        "inputs": [
            {
                "name": "images",
                "shape": [1, 3, size, size],
                "datatype": "FP32",
                "parameters": {"binary_data_size": len(image)},
            }
        ],
        "outputs": [{"name": "logits", "parameters": {"binary_data": True}}],
        "parameters": {"stream": camera},
    }
    text = json.dumps(head).encode()
    lines = [
        "POST /v2/models/model/infer HTTP/1.1",
        "Host: 127.0.0.1",
        f"Content-Length: {len(text) + len(image)}",
        f"Inference-Header-Content-Length: {len(text)}",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + text + image


class Camera:
    """One connection that sends a request and waits for its answer."""

    def __init__(self, port, content):
        self.port, self.content = port, content

    async def open(self):
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port, limit=2**20)
        return self

    async def ask(self, content=None):
        started = time.perf_counter()
        self.writer.write(self.content if content is None else content)
        head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"\r\ncontent-length: ")[2].partition(b"\r\n")[0])
        body = await self.reader.readexactly(length)
        assert b" 200 " in head[:20], body
        return time.perf_counter() - started


async def load(port, contents, each, pause=0.0):
    """Let cameras send `each` requests, one after the other; the seconds it took, and the latencies."""
    cameras = [await Camera(port, content).open() for content in contents]
    latencies = []

    async def run(camera, index):
        if pause:
            await asyncio.sleep(pause * index / len(cameras))
        for _ in range(each):
            taken = await camera.ask()
            latencies.append(taken)
            if pause:
                await asyncio.sleep(max(0.0, pause - taken))

    started = time.perf_counter()
    await asyncio.gather(*(run(camera, index) for index, camera in enumerate(cameras)))
    taken = time.perf_counter() - started
    for camera in cameras:
        camera.writer.close()
    return taken, latencies


def processor(pid):
    """Processor time of a process so far, in seconds, of all its threads."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def resident(pid):
    """Memory of a process in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


# ---- what is measured


def throughput(rounds, each):
    """The bare loop, the plain server and the adaptive one, by turns; then latency at half load.

    Returns:
        Images per second, and images per second of processor time, in every round; and the latencies.
    """
    contents = [request(f"camera {index}", 224, index) for index in range(CAMERAS)]
    context = multiprocessing.get_context("spawn")
    orders, answers = context.Queue(), context.Queue()
    loop = context.Process(target=bare, args=("vit", 224, orders, answers), daemon=True)
    loop.start()
    rates, spared = ({name: [] for name in WAYS} for _ in range(2))
    with server("vit", "none") as plain, server("vit", "neo-stream") as adaptive:
        for turn in range(-1, rounds):
            orders.put(each)
            taken = {"bare loop": answers.get()}
            for name, (port, pid) in (("plain server", plain), ("adaptive server", adaptive)):
                before = processor(pid)
                seconds, _ = asyncio.run(load(port, contents, each))
                taken[name] = seconds, processor(pid) - before
            if turn >= 0:
                print(
                    "  "
                    + ", ".join(f"{way} {all_:.1f} s ({cpu:.1f} of processor)" for way, (all_, cpu) in taken.items())
                )
                for name, (seconds, spent) in taken.items():
                    rates[name].append(CAMERAS * each / seconds)
                    spared[name].append(CAMERAS * each / spent)
        half = 2 * CAMERAS / statistics.median(rates["adaptive server"])  # seconds between two images of a camera
        half = min(half, 60.0)  # before the server closes an idle connection
        _, latencies = asyncio.run(load(adaptive[0], contents, each, pause=half))
    orders.put(None)
    loop.join(30)
    return rates, spared, latencies


def many_cameras(known, active, each):
    """Images per second of `active` cameras while `known` are known, beside a server that knows only those."""
    found = {}
    with server("small", "neo-stream") as (port, pid):
        actives = [request(f"camera {index}", 32) for index in range(active)]
        asyncio.run(load(port, actives, 2))
        taken, _ = asyncio.run(load(port, actives, each))
        found["only the active ones known"] = active * each / taken

        async def introduce():
            camera = await Camera(port, b"").open()
            for index in range(active, known):
                await camera.ask(request(f"camera {index}", 32))

        asyncio.run(introduce())
        taken, _ = asyncio.run(load(port, actives, each))
        found[f"{known:,} known"] = active * each / taken
        found["memory, MB"] = resident(pid)
    return found


def memory(requests):
    """Memory of a server, in MB, along many requests of 64 cameras."""
    contents = [request(f"camera {index}", 32) for index in range(CAMERAS)]
    with server("small", "neo-stream") as (port, pid):
        asyncio.run(load(port, contents, 100))
        found = [resident(pid)]
        for _ in range(10):
            asyncio.run(load(port, contents, max(1, requests // 10 // CAMERAS)))
            found.append(resident(pid))
    return found


def ratio(mine, base):
    """The median of ratios round by round."""
    return statistics.median(one / other for one, other in zip(mine, base, strict=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and requests: a look, not a measurement")
    parser.add_argument("--requests", type=int, default=100_000, help="of the measurement of memory")
    parser.add_argument("--json", help="file to write")
    given = parser.parse_args()
    rounds, each = (3, 1) if given.quick else (7, 4)
    print(f"{CAMERAS} cameras, single images of 224 pixels, ViT-Tiny, one thread, binary tensors")
    rates, spared, latencies = throughput(rounds, each)
    for what, found in (("images/s", rates), ("images per second of processor time", spared)):
        for name, values in found.items():
            print(f"  {name:16} {statistics.median(values):8.1f} {what}")
        plain, adaptive = (ratio(found[name], found["bare loop"]) for name in WAYS[1:])
        cost = ratio(found["plain server"], found["adaptive server"])
        print(f"    plain / bare {plain:.3f}, adaptive / bare {adaptive:.3f} (limit 0.9)")
        print(f"    plain / adaptive {cost:.3f} (limit 1.05)")
    quantiles = {share: float(np.quantile(latencies, share)) * 1e3 for share in (0.5, 0.9, 0.99)}
    print("  latency at half load: " + ", ".join(f"{share:.0%} {value:.0f} ms" for share, value in quantiles.items()))
    known, active = (1000, 50) if given.quick else (10_000, 200)
    many = many_cameras(known, active, 10)
    print(f"{active} active cameras, a network that costs nothing")
    for name, value in many.items():
        print(f"  {name:28} {value:8.1f}" + ("" if "MB" in name else " images/s"))
    requests = 5000 if given.quick else given.requests
    grown = memory(requests)
    print(f"memory over {requests:,} requests: " + " ".join(f"{value:.0f}" for value in grown) + " MB")
    if given.json:
        found = {
            "rates": rates,
            "per_processor_second": spared,
            "latency_ms": quantiles,
            "many": many,
            "memory_mb": grown,
        }
        with atomic(given.json) as path:
            path.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
