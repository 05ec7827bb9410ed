"""Ray Serve with one, two and four replicas that share the states of cameras (examples/ray_serve.py), on loopback.

    python benchmarks/replicas.py --replicas 1 2 4 --store redis://127.0.0.1:6379/0
    python benchmarks/replicas.py --replicas 2 --kill --store cameras.sqlite

Prints the answers in a second for each number of replicas, and for every camera that what was answered is stored. With
`--kill` a replica is killed in the middle, and requests that get no answer are counted.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import socket
import sys
import threading
import time
import urllib.request
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
CAMERA = "serve_multiplexed_model_id"


def picture():
    from PIL import Image

    from neotta.data.handwritten import digits

    file = io.BytesIO()
    Image.fromarray(digits().read(0)).save(file, "png")
    return file.getvalue()


def load(address, cameras, seconds, halfway):
    """Let every camera send one image after the other; return the answers and the failures of each."""
    content, answered, failed = picture(), dict.fromkeys(cameras, 0), dict.fromkeys(cameras, 0)
    end = time.monotonic() + seconds

    def send(camera):
        while time.monotonic() < end:
            try:
                request = urllib.request.Request(address, content, {CAMERA: camera})
                with urllib.request.urlopen(request, timeout=30) as answer:
                    answer.read()
                answered[camera] += 1
            except OSError:  # also what is no 200
                failed[camera] += 1

    threads = [threading.Thread(target=send, args=(camera,)) for camera in cameras]
    for thread in threads:
        thread.start()
    time.sleep(seconds / 2)
    halfway()
    for thread in threads:
        thread.join()
    return answered, failed


def stored(store, cameras):
    """How many samples of each camera the store has."""
    import torch

    import neotta
    from neotta.deploy import RedisStore, SharedStreams, SQLiteStore

    model = neotta.adapt(neotta.load_model("digits").model, streams=True)
    shared = SharedStreams(model, RedisStore(store) if "://" in store else SQLiteStore(store))
    shared(torch.zeros(len(cameras), 3, 32, 32), cameras, adapt=False)
    return neotta.head(model).streams.counts()


def kill_one(ray):
    """Kill a replica as the system would, without a word."""
    names = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
    replica = next(name for name in names if name.startswith("SERVE_REPLICA") and "Cameras" in name)
    ray.kill(ray.get_actor(replica, namespace="serve"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--cameras", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--store", default="cameras.sqlite", help="redis://... or an SQLite file")
    parser.add_argument("--kill", action="store_true", help="kill a replica in the middle")
    asked = parser.parse_args()
    if "://" not in asked.store:
        asked.store = str(Path(asked.store).resolve())
    os.environ["PYTHONPATH"] = os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")])  # of the replicas
    sys.path.insert(0, str(EXAMPLES))
    import ray
    import ray_serve
    from ray import serve

    from neotta.evaluate.engines.ray import start

    start(ray)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port}, logging_config={"log_level": "ERROR"})
    first = None
    for replicas in asked.replicas:
        cameras = [f"{replicas} replicas, camera {number}" for number in range(asked.cameras)]
        serve.run(ray_serve.Cameras.options(num_replicas=replicas).bind("digits", asked.store), name="cameras")
        address = f"http://127.0.0.1:{port}/"
        load(address, cameras, 1, lambda: None)  # the first requests wait for their replica
        before = stored(asked.store, cameras)
        halfway = (lambda: kill_one(ray)) if asked.kill else (lambda: None)
        answered, failed = load(address, cameras, asked.seconds, halfway)
        after = stored(asked.store, cameras)
        learnt = {camera: after[camera] - before[camera] for camera in cameras}
        speed = sum(answered.values()) / asked.seconds
        first = first or speed
        result = {
            "replicas": replicas,
            "answers_in_a_second": round(speed, 1),
            "of_the_first": round(speed / first, 2),
            "answered": sum(answered.values()),
            "failed": sum(failed.values()),
            "stored": sum(learnt.values()),
            "answered_but_lost": sum(max(0, answered[camera] - learnt[camera]) for camera in cameras),
        }
        print(json.dumps(result), flush=True)
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
