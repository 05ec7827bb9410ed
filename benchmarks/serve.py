"""The server under load, on loopback, beside the bare batched loop in the same run.

Limits: 64 cameras that send single images of 224 pixels to a ViT-Tiny, as binary tensors, are answered at 0.9 of the
speed of a loop over batches of 64 at least; adapting costs at most 1.05 of serving the plain model; at half load 99 of
100 answers take at most twice the model's time for a full batch; 200 active cameras are as fast if 10,000 are known, to
5 %; memory is flat over 100,000 requests. JSON tensors and JPEG files are measured beside binary tensors.

    python benchmarks/serve.py [--quick] [--threads N] [--requests N] [--json FILE]

On two quiet cores it takes about 5 minutes, with --quick about 1; it stops with an error where a part hangs. On a busy
machine the ratios of wall-clock time mean little: look at those of processor time, which are printed beside them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import multiprocessing
import os
import queue
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from neotta._files import atomic

CAMERAS = 64
WAYS = ("bare loop", "plain server", "adaptive server")
PATIENCE = 600.0
"""Seconds after which a part that has not ended is an error."""

STARTED = time.perf_counter()


def say(text):
    """Print a line with the seconds since the start."""
    print(f"[{time.perf_counter() - STARTED:4.0f} s] {text}", flush=True)


# ---- the servers, each in a process of its own


def model_of(kind, threads=1):
    """A ViT-Tiny of timm, or the bundled digits."""
    import torch

    from neotta import load_model

    torch.manual_seed(0)
    torch.set_num_threads(threads)
    if kind == "vit":
        return load_model("timm:vit_tiny_patch16_224", pretrained=False)
    return load_model("digits")


def serve(kind, rule, threads, folder, port):
    """Run a server until its process is ended."""
    from neotta.cli.serve import listening
    from neotta.deploy.serve.app import make_server
    from neotta.deploy.serve.engine import TorchEngine
    from neotta.deploy.serve.history import History
    from neotta.deploy.serve.service import Service
    from neotta.deploy.serve.settings import Limits, Settings

    engine = TorchEngine(model_of(kind, threads), rule, folder=None if rule == "none" else folder)
    limits = Limits(queue=4096, requests=4096, timeout=PATIENCE)  # 64 images as JSON are 200 MB
    service = Service(engine, Settings(name="model", limits=limits), History(folder))
    socket = listening("127.0.0.1", 0)
    port.put(socket.getsockname()[1])
    make_server(service, "127.0.0.1", socket.getsockname()[1]).run(sockets=[socket])


@contextlib.contextmanager
def child(work, *given):
    """A process that ends with the block."""
    process = multiprocessing.get_context("spawn").Process(target=work, args=given, daemon=True)
    process.start()
    try:
        yield process
    finally:
        process.terminate()
        process.join(60)


def received(answers, process, seconds=PATIENCE):
    """The next answer of a process, unless it died."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(queue.Empty):
            return answers.get(timeout=1.0)
        if not process.is_alive():
            raise SystemExit(f"a process of the benchmark ended with status {process.exitcode}")
    raise SystemExit(f"no answer of a process of the benchmark within {seconds:.0f} seconds")


@contextlib.contextmanager
def server(kind, rule, threads=1):
    """A server: its port and its process id."""
    port = multiprocessing.get_context("spawn").Queue()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        child(serve, kind, rule, threads, folder, port) as process,
    ):
        yield received(port, process), process.pid


def bare(kind, size, threads, orders, answers):
    """The loop that a server is compared with: told a number of batches, it answers how long they took."""
    import torch

    model = model_of(kind, threads).model
    images = torch.from_numpy(np.random.default_rng(0).normal(size=(CAMERAS, 3, size, size)).astype(np.float32))
    while True:
        batches = orders.get()
        started, spent = time.perf_counter(), time.process_time()
        with torch.inference_mode():
            for _ in range(batches):
                model(images)
        answers.put((time.perf_counter() - started, time.process_time() - spent))


# ---- the clients


def message(path, body, *headers):
    """The bytes of a POST request."""
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def request(camera, size, seed=0, way="binary"):
    """The bytes of a request with one image: a binary tensor, a JSON tensor or a JPEG file."""
    generator = np.random.default_rng(seed)
    if way == "JPEG":
        from PIL import Image

        buffer = io.BytesIO()
        Image.fromarray(generator.integers(0, 256, (size, size, 3), np.uint8)).save(buffer, "JPEG")
        return message(f"/classify?stream={camera.replace(' ', '%20')}", buffer.getvalue())
    image = generator.normal(size=(1, 3, size, size)).astype("<f4")
    entry = {"name": "images", "shape": [1, 3, size, size], "datatype": "FP32"}
    head = {"outputs": [{"name": "logits", "parameters": {"binary_data": True}}], "parameters": {"stream": camera}}
    if way == "JSON":
        entry["data"] = image.reshape(-1).tolist()
        return message("/v2/models/model/infer", json.dumps({**head, "inputs": [entry]}).encode())
    entry["parameters"] = {"binary_data_size": image.nbytes}
    text = json.dumps({**head, "inputs": [entry]}).encode()
    length = f"Inference-Header-Content-Length: {len(text)}"
    return message("/v2/models/model/infer", text + image.tobytes(), length)


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
    try:
        await asyncio.wait_for(asyncio.gather(*map(run, cameras, range(len(cameras)))), PATIENCE)
    except asyncio.TimeoutError:
        raise SystemExit(f"only {len(latencies)} answers within {PATIENCE:.0f} seconds") from None
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


def throughput(rounds, each, threads):
    """The bare loop, the plain server and the adaptive one, by turns; then latency at half load.

    Returns:
        Images per second, and images per second of processor time, in every round; the latencies; and images per second
        that are sent in other ways.
    """
    contents = [request(f"camera {index}", 224, index) for index in range(CAMERAS)]
    context = multiprocessing.get_context("spawn")
    orders, answers = context.Queue(), context.Queue()
    rates, spared = ({name: [] for name in WAYS} for _ in range(2))
    with contextlib.ExitStack() as stack:
        loop = stack.enter_context(child(bare, "vit", 224, threads, orders, answers))
        plain = stack.enter_context(server("vit", "none", threads))
        adaptive = stack.enter_context(server("vit", "neo-stream", threads))
        say("loop and servers are ready")
        for turn in range(-1, rounds):
            batches = each if turn >= 0 else 1
            orders.put(batches)
            taken = {"bare loop": received(answers, loop)}
            for name, (port, pid) in (("plain server", plain), ("adaptive server", adaptive)):
                before = processor(pid)
                seconds, _ = asyncio.run(load(port, contents, batches))
                taken[name] = seconds, processor(pid) - before
            texts = [f"{way} {seconds:.1f} s ({spent:.1f} of processor)" for way, (seconds, spent) in taken.items()]
            say(f"{f'round {turn + 1} of {rounds}' if turn >= 0 else 'warm-up'}: {', '.join(texts)}")
            if turn >= 0:
                for name, (seconds, spent) in taken.items():
                    rates[name].append(CAMERAS * each / seconds)
                    spared[name].append(CAMERAS * each / spent)
        half = 2 * CAMERAS / statistics.median(rates["adaptive server"])  # seconds between two images of a camera
        half = min(half, 60.0)  # before the server closes an idle connection
        _, latencies = asyncio.run(load(adaptive[0], contents, each, pause=half))
        others = {}
        for way in ("JSON", "JPEG"):
            contents = [request(f"camera {index}", 224, index, way) for index in range(CAMERAS)]
            taken, _ = asyncio.run(load(adaptive[0], contents, each))
            others[way] = CAMERAS * each / taken
            say(f"{way}: {others[way]:.1f} images/s")
    return rates, spared, latencies, others


def many_cameras(known, active, each):
    """Images per second of `active` cameras while `known` are known, beside a server that knows no others."""
    found = {}
    with server("digits", "neo-stream") as (port, pid), server("digits", "neo-stream") as (fresh, _):
        actives = [request(f"camera {index}", 32) for index in range(active)]
        new = iter(range(active, known))

        async def introduce():
            camera = await Camera(port, b"").open()
            for index in new:  # shared by all connections
                await camera.ask(request(f"camera {index}", 32))
            camera.writer.close()

        async def introduce_all():
            await asyncio.wait_for(asyncio.gather(*(introduce() for _ in range(CAMERAS))), PATIENCE)

        asyncio.run(introduce_all())
        say(f"{known:,} cameras are known")
        taken = {fresh: [], port: []}
        for turn in range(-1, 5):  # by turns: the machine may be busy
            for each_port, seconds in taken.items():
                seconds += [asyncio.run(load(each_port, actives, each))[0]] * (turn >= 0)
            say(f"turn {turn + 1} of 5")
        found[f"{active:,} known"], found[f"{known:,} known"] = (
            active * each / statistics.median(seconds) for seconds in taken.values()
        )
        found["ratio"] = ratio(taken[fresh], taken[port])
        found["memory, MB"] = resident(pid)
    return found


def memory(requests):
    """Memory of a server, in MB, along many requests of 64 cameras."""
    contents = [request(f"camera {index}", 32) for index in range(CAMERAS)]
    with server("digits", "neo-stream") as (port, pid):
        asyncio.run(load(port, contents, min(100, -(-requests // CAMERAS))))
        found = [resident(pid)]
        for part in range(1, 11):
            asyncio.run(load(port, contents, -(-requests // 10 // CAMERAS)))
            found.append(resident(pid))
            say(f"{requests * part // 10:,} requests: {found[-1]:.0f} MB")
    return found


# ---- what is printed


def ratio(mine, base):
    """The median of ratios round by round."""
    return statistics.median(one / other for one, other in zip(mine, base, strict=True))


def ratios(found):
    """The ratios that have limits."""
    plain, adaptive = (ratio(found[name], found["bare loop"]) for name in WAYS[1:])
    return {
        "plain / bare": plain,
        "adaptive / bare": adaptive,
        "plain / adaptive": ratio(found["plain server"], found["adaptive server"]),
    }


def show_throughput(rates, spared, latencies, others):
    """Print the first part; its figures."""
    found = {}
    for what, values in (("wall clock", rates), ("processor time", spared)):
        print(f"by {what}: " + ", ".join(f"{name} {statistics.median(values[name]):.1f} images/s" for name in WAYS))
        found[what] = ratios(values)
        print(
            f"    plain / bare {found[what]['plain / bare']:.3f}, adaptive / bare {found[what]['adaptive / bare']:.3f} "
            f"(at least 0.9); plain / adaptive {found[what]['plain / adaptive']:.3f} (at most 1.05)"
        )
    quantiles = {f"{share:.0%}": float(np.quantile(latencies, share)) * 1e3 for share in (0.5, 0.9, 0.99)}
    full = CAMERAS / statistics.median(rates["bare loop"]) * 1e3
    print(
        "latency at half load: "
        + ", ".join(f"{share} {value:.0f} ms" for share, value in quantiles.items())
        + f"; 99 % / the model's time for a full batch ({full:.0f} ms) {quantiles['99%'] / full:.2f} (at most 2)"
    )
    base = statistics.median(rates["adaptive server"])
    print("of binary tensors: " + ", ".join(f"{way} {rate / base:.2f}" for way, rate in others.items()))
    return {"ratios": found, "latency_ms": quantiles, "full_batch_ms": full, "other_ways": others}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and requests: a look, not a measurement")
    parser.add_argument("--threads", type=int, default=1, help="of torch, in the loop and in the servers")
    parser.add_argument("--requests", type=int, help="of the measurement of memory (default: 100,000)")
    parser.add_argument("--json", help="file to write")
    given = parser.parse_args()
    rounds, each = (2, 1) if given.quick else (7, 2)
    say(f"{CAMERAS} cameras, single images of 224 pixels, ViT-Tiny, {given.threads} thread(s), binary tensors")
    rates, spared, *rest = throughput(rounds, each, given.threads)
    found = {"rates": rates, "per_processor_second": spared, **show_throughput(rates, spared, *rest)}
    known, active = (1000, 50) if given.quick else (10_000, 200)
    say(f"{active} active cameras of {known:,} known, digits")
    found["many"] = many_cameras(known, active, each=4 if given.quick else 20)
    for name, value in found["many"].items():
        print(f"    {name:16} {value:8.2f}" + (" images/s of the active ones" if "known" in name else ""))
    requests = given.requests or (3200 if given.quick else 100_000)
    say(f"memory over {requests:,} requests of {CAMERAS} cameras, digits")
    found["memory_mb"] = grown = memory(requests)
    print(f"    grew by {grown[-1] - grown[0]:+.1f} MB in all, by {grown[-1] - grown[5]:+.1f} MB in the second half")
    say("done")
    if given.json:
        with atomic(given.json) as path:
            path.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
