"""Requests of many cameras joined into batches: in order, bounded, and answered before the end."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time

import numpy as np
import pytest
import torch
from support.serving import pictures, serving, small_engine, tensor, wait_until
from support.small_model import network

import neotta
from neotta.deploy.serve.batcher import Batcher
from neotta.deploy.serve.classifier import Classifier, Job
from neotta.deploy.serve.guard import RequestError
from neotta.deploy.serve.settings import Limits
from neotta.deploy.serve.torch_engine import TorchEngine

INFER = "/v2/models/small/infer"


class GatedEngine(TorchEngine):
    """Waits before each batch until it is let through."""

    def __init__(self):
        self.gate, self.entered, self.sizes = threading.Event(), threading.Event(), []
        self.gate.set()
        super().__init__(network())
        self.sizes.clear()
        self.entered.clear()

    def forward(self, images):
        self.entered.set()
        assert self.gate.wait(20)
        self.sizes.append(len(images))
        return super().forward(images)


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
            thread.join(20)
        return results

    return end


def test_jobs_of_many_cameras_share_a_batch_and_keep_their_order():
    images = pictures(30, seed=1)
    cameras = [f"camera {index % 3}" for index in range(30)]
    classifier = Classifier(small_engine())

    async def run():
        batcher = Batcher(classifier, Limits(rows=8, wait=0.02))
        batcher.start()
        jobs = [Job(images[index : index + 1], camera) for index, camera in enumerate(cameras)]
        answers = await asyncio.gather(*map(batcher.submit, jobs))
        await batcher.close()
        return answers, batcher.batches

    answers, batches = asyncio.run(run())
    assert batches == 4  # of 8, 8, 8 and 6
    for camera in set(cameras):
        mine = [index for index, name in enumerate(cameras) if name == camera]
        model = neotta.adapt(network().model.eval(), "neo-stream")
        seen, expected = 0, []
        for first in range(0, 30, 8):  # one camera alone, with the same batches
            part = [index for index in mine if first <= index < first + 8]
            with torch.inference_mode():
                expected.append(model(torch.from_numpy(images[part])).numpy())
            seen += len(part)
        found = np.concatenate([answers[index].adapted for index in mine])
        np.testing.assert_allclose(found, np.concatenate(expected), atol=1e-5)


def test_requests_join_while_the_model_is_busy():
    engine = GatedEngine()
    with serving(engine, limits=Limits(rows=64, wait=0.0)) as client:
        engine.gate.clear()
        first = in_background(1, lambda _: client.infer(pictures(1), stream="first"))
        assert engine.entered.wait(10)
        rest = in_background(5, lambda index: client.infer(pictures(2, seed=index), stream=f"camera {index}"))
        wait_until(lambda: client.service.batcher.waiting == 10)
        engine.gate.set()
        assert all(first() + rest())
    assert engine.sizes == [1, 10]


def test_a_full_queue_is_refused_with_a_time_to_come_back():
    engine = GatedEngine()
    with serving(engine, limits=Limits(queue=2, rows=1)) as client:
        engine.gate.clear()
        end = in_background(3, lambda index: client.infer(pictures(1), stream="busy"))
        assert engine.entered.wait(10)
        wait_until(lambda: client.service.batcher.waiting == 2)
        status, headers, answer = client.ask("POST", INFER, json.dumps({"inputs": [tensor(pictures(1))]}))
        assert (status, "2 images are waiting" in answer["error"]) == (429, True)
        assert int(headers["Retry-After"]) >= 1
        assert client.ask("POST", INFER, json.dumps({"inputs": [tensor(pictures(1))], "id": "again"}))[0] == 429
        engine.gate.set()
        assert all(end())
        assert client.service.engine.counts() == {"busy": 3}


def test_the_queue_counts_images_and_takes_one_large_request():
    engine = GatedEngine()
    with serving(engine, limits=Limits(queue=4, rows=8)) as client:
        engine.gate.clear()
        first = in_background(1, lambda _: client.infer(pictures(1), stream="first"))
        assert engine.entered.wait(10)
        large = in_background(1, lambda _: client.infer(pictures(8), stream="large"))
        wait_until(lambda: client.service.batcher.waiting == 8)
        status, answer = client.post(INFER, {"inputs": [tensor(pictures(1))]})
        assert (status, answer) == (429, {"error": "8 images are waiting already: try later"})
        engine.gate.set()
        assert all(first() + large())
        assert client.service.batcher.waiting == 0


def test_the_end_answers_what_was_accepted_and_writes_what_was_learnt(tmp_path):
    class Slow(TorchEngine):
        def forward(self, images):
            time.sleep(0.3)
            return super().forward(images)

    engine = Slow(network(), folder=tmp_path)
    with serving(engine, folder=tmp_path, durable=3600.0, limits=Limits(rows=2)) as client:
        end = in_background(4, lambda index: client.infer(pictures(1, seed=index), stream="last"))
        wait_until(lambda: client.service.batcher.waiting + client.service.batcher.batches >= 2)
    assert all(end())
    assert small_engine(folder=tmp_path).counts() == {"last": 4}


def test_a_job_that_waits_too_long_is_given_up():
    engine = GatedEngine()
    with serving(engine, limits=Limits(timeout=0.3)) as client:
        engine.gate.clear()
        status, answer = client.post(INFER, {"inputs": [tensor(pictures(1))]})
        assert (status, "no answer within" in answer["error"]) == (504, True)
        engine.gate.set()
        assert client.infer(pictures(1), adapt=False)["class"].shape == (1,)


@pytest.mark.parametrize("sent", [b"", b"x" * 10])
def test_a_client_that_stalls_is_told_and_one_that_leaves_is_forgotten(sent):
    head = b"POST /v2/models/small/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n"
    with serving(limits=Limits(timeout=0.3)) as client:
        with socket.create_connection(("127.0.0.1", client.port), timeout=10) as stalled:
            stalled.sendall(head + sent)
            assert b"408" in stalled.recv(4096).partition(b"\r\n")[0]
        with socket.create_connection(("127.0.0.1", client.port), timeout=10) as leaving:
            leaving.sendall(head + sent)
        assert client.infer(pictures(1))["class"].shape == (1,)
        assert client.service.engine.counts() == {"default": 1}


def test_too_many_cameras_are_refused_and_those_known_go_on():
    with serving(limits=Limits(cameras=2)) as client:
        for camera in ("a", "b", "a"):
            client.infer(pictures(1), stream=camera)
        body = {"inputs": [tensor(pictures(1))], "parameters": {"stream": "c"}}
        status, answer = client.post(INFER, body)
        assert (status, "the limit" in answer["error"]) == (403, True)
        assert client.infer(pictures(1), stream="c", adapt=False)["class"].shape == (1,)
        assert client.service.engine.counts() == {"a": 2, "b": 1}


def test_a_frozen_camera_answers_without_learning():
    with serving() as client:
        client.infer(pictures(8), stream="gate")
        client.service.records.describe("gate", frozen=True)
        body = {"inputs": [tensor(pictures(8))], "parameters": {"stream": "gate"}}
        assert client.post(INFER, body)[1]["parameters"]["adapted"] is False
        assert client.service.engine.counts() == {"gate": 8}


def test_a_mixed_batch_learns_from_some_rows_alone():
    classifier = Classifier(small_engine())
    images = pictures(12, seed=2)
    jobs = [Job(images[:4], "a"), Job(images[4:8], "b", adapt=False), Job(images[8:], "a")]
    answers = classifier.run(jobs)
    assert [answer.learnt for answer in answers] == [True, False, True]
    assert classifier.engine.counts() == {"a": 8}
    assert (answers[1].adapted == answers[1].plain).all()


def test_nothing_is_taken_after_the_end():
    async def run():
        batcher = Batcher(Classifier(small_engine()), Limits())
        batcher.start()
        await batcher.close()
        with pytest.raises(RequestError, match="shutting down"):
            await batcher.submit(Job(pictures(1), "a"))

    asyncio.run(run())
