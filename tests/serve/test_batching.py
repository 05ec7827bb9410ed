"""Requests of many cameras joined into batches: in order, bounded, and answered before the end."""

from __future__ import annotations

import asyncio
import json
import socket
import time

import numpy as np
import pytest
import torch
from support.serving import GatedEngine, in_background, pictures, serving, small_engine, tensor, wait_until
from support.small_model import network

import neotta
from neotta.deploy.serve.engine import TorchEngine
from neotta.deploy.serve.fair import Batcher, FairQueue, Job
from neotta.deploy.serve.service import Service
from neotta.deploy.serve.settings import Limits, RequestError, Settings

INFER = "/v2/models/small/infer"


def test_jobs_of_many_cameras_share_a_batch_and_keep_their_order():
    images = pictures(30, seed=1)
    cameras = [f"camera {index % 3}" for index in range(30)]
    service = Service(small_engine(), Settings())

    async def run():
        batcher = Batcher(service.run, Limits(rows=8, wait=0.02))
        jobs = [Job(images[index : index + 1], camera) for index, camera in enumerate(cameras)]
        answers = await asyncio.gather(*map(batcher.submit, jobs))
        await batcher.close()
        batcher.shutdown()
        return answers, batcher.batches

    answers, batches = asyncio.run(run())
    assert batches == 4  # of 8, 8, 8 and 6
    for camera in set(cameras):
        mine = [index for index, name in enumerate(cameras) if name == camera]
        model = neotta.adapt(network().model.eval(), "neo-stream")
        expected = []
        for first in range(0, 30, 8):  # one camera alone, with the same batches
            part = [index for index in mine if first <= index < first + 8]
            with torch.inference_mode():
                expected.append(model(torch.from_numpy(images[part])).numpy())
        found = np.concatenate([answers[index].adapted for index in mine])
        np.testing.assert_allclose(found, np.concatenate(expected), atol=1e-5)


def test_requests_join_while_the_model_is_busy():
    engine = GatedEngine()
    with serving(engine, limits=Limits(rows=64, wait=0.0)) as client:
        engine.gate.clear()
        first = in_background(1, lambda _: client.infer(pictures(1), stream="first"))
        assert engine.entered.wait(10)
        rest = in_background(5, lambda index: client.infer(pictures(2, seed=index), stream=f"camera {index}"))
        wait_until(lambda: client.service.batcher.queue.amount == 10)
        engine.gate.set()
        assert all(first() + rest())
    assert engine.sizes == [1, 10]


def test_a_batch_has_so_many_images_at_most():
    sizes = []

    async def run():
        def answer(jobs):
            sizes.append(sum(len(job.images) for job in jobs))
            return [None] * len(jobs)

        batcher = Batcher(answer, Limits(rows=4, wait=0.05))
        await asyncio.gather(*(batcher.submit(Job(pictures(2), str(index))) for index in range(5)))
        batcher.shutdown()

    asyncio.run(run())
    assert sizes == [4, 4, 2]


def test_a_full_queue_is_refused_with_a_time_to_come_back():
    engine = GatedEngine()
    with serving(engine, limits=Limits(queue=2, rows=1)) as client:
        engine.gate.clear()
        first = in_background(1, lambda index: client.infer(pictures(1), stream="busy"))
        assert engine.entered.wait(10)
        end = in_background(2, lambda index: client.infer(pictures(1), stream="busy"))
        wait_until(lambda: client.service.batcher.queue.amount == 2)
        body = {"inputs": [tensor(pictures(1))], "parameters": {"stream": "busy"}}
        status, headers, answer = client.ask("POST", INFER, json.dumps(body))
        assert (status, "2 images are waiting" in answer["error"]) == (429, True)
        assert int(headers["Retry-After"]) >= 1
        engine.gate.set()
        assert all(first() + end())
        assert client.service.engine.counts() == {"busy": 3}


def test_whoever_holds_most_of_a_full_queue_gives_way():
    engine = GatedEngine()
    with serving(engine, limits=Limits(queue=8, rows=8)) as client:
        engine.gate.clear()
        first = in_background(1, lambda _: client.infer(pictures(1), stream="first"))
        assert engine.entered.wait(10)
        body = {"inputs": [tensor(pictures(4))], "parameters": {"stream": "large"}}
        large = in_background(2, lambda _: client.post(INFER, body)[0])
        wait_until(lambda: client.service.batcher.queue.amount == 8)
        small = in_background(1, lambda _: client.infer(pictures(1), stream="small"))
        wait_until(lambda: client.service.batcher.queue.amount == 5)
        assert client.post(INFER, body)[0] == 429
        engine.gate.set()
        assert all(first() + small())
        assert sorted(large()) == [200, 429]
        assert client.service.engine.counts() == {"first": 1, "large": 4, "small": 1}
        assert client.service.batcher.queue.amount == 0


def test_one_large_request_is_taken_by_an_empty_queue():
    with serving(limits=Limits(queue=4, rows=8)) as client:
        assert client.infer(pictures(8), stream="large")["class"].shape == (8,)


def test_clients_and_streams_take_turns():
    async def run():
        queue = FairQueue(100, "images")
        for client, stream, count in (("a", "x", 3), ("a", "y", 2), ("b", "z", 3)):
            for index in range(count):
                queue.add(f"{client}{stream}{index}", (client, stream), 1)
        order = []
        while entry := queue.first():
            queue.take(entry)
            order.append(entry.item)
        return order

    assert asyncio.run(run()) == ["ax0", "bz0", "ay0", "bz1", "ax1", "bz2", "ay1", "ax2"]


def test_an_entry_whose_client_has_just_left_is_not_taken():
    async def run():
        queue = FairQueue(100, "images")
        gone, here = (queue.add(name, ("a", name), 1) for name in ("gone", "here"))
        gone.result.cancel()
        assert queue.first() is here
        queue.take(here)
        assert (queue.first(), queue.amount) == (None, 0)

    asyncio.run(run())


def test_many_streams_of_one_client_do_not_keep_another_client_out():
    async def run():
        queue = FairQueue(4, "images")
        flood = [queue.add(index, ("flood", str(index)), 1) for index in range(4)]
        with pytest.raises(RequestError, match="4 images are waiting"):
            queue.add(4, ("flood", "another"), 1)
        honest = queue.add("honest", ("other", "gate"), 1)
        assert [entry.result.done() for entry in flood].count(True) == 1
        assert (queue.amount, honest.result.done()) == (4, False)
        for entry in flood:
            if entry.result.done():
                assert entry.result.exception().status == 429

    asyncio.run(run())


def test_the_end_answers_what_was_accepted_and_writes_what_was_learnt(tmp_path):
    class Slow(TorchEngine):
        def _forward(self, images):
            time.sleep(0.3)
            return super()._forward(images)

    engine = Slow(network(), folder=tmp_path)
    with serving(engine, folder=tmp_path, durable=3600.0, limits=Limits(rows=2)) as client:
        end = in_background(4, lambda index: client.infer(pictures(1, seed=index), stream="last"))
        wait_until(lambda: client.service.batcher.queue.amount + client.service.batcher.batches >= 2)
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
    with serving(limits=Limits(streams=2)) as client:
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
        before = client.service.engine.snapshot("gate")
        client.post("/streams/gate", {"action": "freeze"})
        body = {"inputs": [tensor(pictures(8))], "parameters": {"stream": "gate"}}
        assert client.post(INFER, body)[1]["parameters"]["adapted"] is False
        assert client.service.engine.snapshot("gate").to_bytes() == before.to_bytes()
        client.post("/streams/gate", {"action": "unfreeze"})
        assert client.post(INFER, body)[1]["parameters"]["adapted"] is True
        assert client.service.engine.counts() == {"gate": 16}


def test_a_mixed_batch_learns_from_some_rows_alone():
    service = Service(small_engine(), Settings())
    images = pictures(12, seed=2)
    jobs = [Job(images[:4], "a"), Job(images[4:8], "b", adapt=False), Job(images[8:], "a")]
    answers = service.run(jobs)
    assert [answer.learnt.tolist() for answer in answers] == [[True] * 4, [False] * 4, [True] * 4]
    assert service.engine.counts() == {"a": 8}
    assert (answers[1].adapted == answers[1].plain).all()


def test_nothing_is_taken_after_the_end():
    async def run():
        batcher = Batcher(Service(small_engine(), Settings()).run, Limits())
        await batcher.close()
        batcher.shutdown()
        with pytest.raises(RequestError, match="shutting down"):
            await batcher.submit(Job(pictures(1), "a"))

    asyncio.run(run())
