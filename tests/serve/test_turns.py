"""What costs goes through a fair queue: who waits for whom, what is counted first, and what is done once for all."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import threading
import time
import tracemalloc
from urllib.parse import quote

import numpy as np
import pytest
from support.serving import GatedEngine, in_background, pictures, serving, small_engine, tensor, wait_until

from neotta.deploy.serve.board import EVERY
from neotta.deploy.serve.dashboard import LISTENERS
from neotta.deploy.serve.fair import Batcher, FairQueue, Job, Readers
from neotta.deploy.serve.protocol import parse
from neotta.deploy.serve.service import REFRESHED, Service
from neotta.deploy.serve.settings import Limits, RequestError, Settings

INFER = "/v2/models/small/infer"


# ---- threads for what clients sent


async def settled(workers):
    """Until everything that can start has started."""
    for _ in range(20):
        await asyncio.sleep(0.005)
    return [entry.owner for (entry,) in workers.running]


@pytest.mark.parametrize(
    ("owners", "running"),
    [
        ([("a", "x")] * 5, [("a", "x")]),
        ([("a", str(index)) for index in range(5)], [("a", "0"), ("a", "1")]),
        ([("a", "x"), ("a", "y"), ("a", "z"), ("b", "x")], [("a", "x"), ("a", "y"), ("b", "x")]),
        ([("a", "x"), ("b", "x"), ("c", "x"), ("d", "x")], [("a", "x"), ("b", "x"), ("c", "x")]),
    ],
    ids=["a camera has one thread", "a client has two of three", "another client finds one", "three clients"],
)
def test_who_comes_next_finds_a_free_thread(owners, running):
    async def run():
        workers, gate = Readers(100), threading.Event()
        tasks = [asyncio.ensure_future(workers.run(gate.wait, owner, 1)) for owner in owners]
        found = await settled(workers)
        gate.set()
        assert await asyncio.gather(*tasks) == [True] * len(owners)
        workers.shutdown()
        return found

    assert asyncio.run(run()) == running


def test_two_of_the_largest_images_are_not_decoded_together():
    async def run():
        workers, gate = Readers(100), threading.Event()
        sizes = {"a": 100, "b": 100, "c": 50}
        tasks = [asyncio.ensure_future(workers.run(gate.wait, (name, ""), size)) for name, size in sizes.items()]
        found = await settled(workers)
        gate.set()
        await asyncio.gather(*tasks)
        workers.shutdown()
        return found

    assert asyncio.run(run()) == [("a", ""), ("c", "")]


def test_work_of_a_client_that_left_is_not_done():
    async def run():
        workers, gate, done = Readers(100), threading.Event(), []
        first = asyncio.ensure_future(workers.run(gate.wait, ("a", ""), 1))
        left = asyncio.ensure_future(workers.run(lambda: done.append("left"), ("a", ""), 1))
        stays = asyncio.ensure_future(workers.run(lambda: done.append("stays"), ("a", ""), 1))
        await settled(workers)
        left.cancel()
        gate.set()
        await asyncio.gather(first, stays)
        workers.shutdown()
        return done, workers.queue.amount

    assert asyncio.run(run()) == (["stays"], 0)


def test_what_fails_frees_its_thread():
    async def run():
        workers = Readers(100)
        with pytest.raises(ZeroDivisionError):
            await workers.run(lambda: 1 // 0, ("a", ""), 1)
        found = await workers.run(lambda: "next", ("a", ""), 1)
        workers.shutdown()
        return found

    assert asyncio.run(run()) == "next"


# ---- the thread of the model


def test_calls_and_jobs_take_turns_by_client():
    """Two hundred pages of one client that are asked for do not keep the image of another waiting."""

    async def run():
        order, gate = [], threading.Event()

        def answer(jobs):
            order.append([job.stream for job in jobs])
            return [None] * len(jobs)

        batcher = Batcher(answer, Limits(wait=0.0, rows=4))
        first = asyncio.ensure_future(batcher.call(gate.wait))
        await asyncio.sleep(0.05)
        pages = [
            asyncio.ensure_future(batcher.call(order.append, number, owner=("flood", str(number % 7))))
            for number in range(200)
        ]
        await asyncio.sleep(0)
        honest = [asyncio.ensure_future(batcher.submit(Job(pictures(1), name), "honest")) for name in "ab"]
        own = asyncio.ensure_future(batcher.call(order.append, "own"))
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(first, *pages, *honest, own)
        await batcher.close()
        batcher.shutdown()
        return order

    order = asyncio.run(run())
    assert order.index(["a"]) <= 2
    assert order.index(["b"]) <= 5
    assert order.index("own") <= 3  # what the server does itself has its turn too
    assert sorted(each for each in order if type(each) is int) == list(range(200))


def test_calls_are_bounded_and_those_of_the_server_never_rejected():
    async def run():
        gate, batcher = threading.Event(), Batcher(lambda jobs: [], Limits(queue=3))
        first = asyncio.ensure_future(batcher.call(gate.wait))
        await asyncio.sleep(0.05)
        asked = [asyncio.ensure_future(batcher.call(int, owner=("a", "x"))) for _ in range(5)]
        own = asyncio.ensure_future(batcher.call(int))
        await asyncio.sleep(0.05)
        gate.set()
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert await own == 0
        await first
        await batcher.close()
        batcher.shutdown()
        return [getattr(each, "status", each) for each in found]

    assert asyncio.run(run()) == [0, 0, 0, 429, 429]


def test_of_those_who_hold_most_the_largest_gives_way_and_of_equals_the_last():
    async def run():
        queue = FairQueue(8, "images")
        entries = [queue.add(name, ("flood", "x"), size) for name, size in (("a", 2), ("b", 3), ("c", 3))]
        with pytest.raises(RequestError):
            queue.add("as large", ("flood", "x"), 3)
        queue.add("honest", ("other", "gate"), 2)
        found = [entry.item for entry in entries if entry.result.done()]
        queue.add("fills", ("other", "gate"), 1)
        assert ([entry.item for entry in entries if entry.result.done()], queue.amount) == (["c"], 8)
        for entry in entries:
            entry.result.cancel()
        entries[2].result.exception()
        return found

    assert asyncio.run(run()) == ["c"]


# ---- JSON


@pytest.mark.parametrize(
    "data",
    [b"{}," * 2_700_000, b"[]," * 2_700_000, b"1," * 4_000_000, b'{"a":' * 1_500_000, b'"",' * 2_000_000],
    ids=["objects", "lists", "numbers", "deep", "texts"],
)
def test_values_are_counted_before_they_become_objects(data):
    body = b'{"inputs": [{"name": "images", "shape": [1], "datatype": "FP32", "data": [' + data + b"1]}]}"
    tracemalloc.start()
    with pytest.raises(RequestError) as error:
        parse(body, len(body), [])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (error.value.status, peak < 2**20) == (413, True)


@pytest.mark.parametrize(
    ("data", "status"),
    [(b"1," * 98, 400), (b"1," * 250, 413), (b"[]," * 30, 413), (b"{}," * 30, 413), (b'{"a":1},' * 12 + b"1,", 413)],
)
def test_a_list_an_object_and_a_name_count_as_ten_numbers(data, status):
    body = b'{"inputs": [{"name": "images", "shape": [1], "datatype": "FP32", "data": [' + data + b"1]}]}"
    with pytest.raises(RequestError) as error:
        parse(body, len(body), [], 290)
    assert error.value.status == status


def test_as_many_values_as_allowed_are_read():
    with serving(limits=Limits(values=4000)) as client:
        assert client.infer(pictures(1))
        assert client.post(INFER, {"inputs": [tensor(pictures(2))]})[0] == 413


# ---- what all are shown


def test_summaries_are_made_once_for_all_who_ask_and_again_only_for_what_changed():
    service = Service(small_engine(), Settings())
    made, summary = [], service.summary
    service.summary = lambda name, stream: made.append(name) or summary(name, stream)
    service.run([Job(pictures(1), f"camera {index}") for index in range(40)])

    async def run():
        board = service.board
        shown = await asyncio.gather(*(board.latest() for _ in range(64)))
        assert len(set(map(id, shown))) == 1
        assert len(made) == 40
        assert len(json.loads(shown[0].everything)["streams"]) == 40
        service.run([Job(pictures(1), "camera 7")])
        service.refresh()
        assert await board.latest() is shown[0], "not before a second has passed, whatever changes"
        await asyncio.sleep(EVERY)
        again = await board.latest()
        names = [each["id"] for each in json.loads(again.changes)["streams"]]
        service.forget("camera 7")
        await asyncio.sleep(EVERY)
        return names, "camera 7" in (await board.latest()).everything

    names, there = asyncio.run(run())
    assert len(names) == 40  # all were refreshed
    assert not there
    made.clear()
    service.act("camera 3", "freeze")
    time.sleep(EVERY)

    async def frozen():
        return json.loads((await service.board.latest()).changes)["streams"]

    ((found,),) = (asyncio.run(frozen()),)
    assert (found["id"], found["status"], made) == (
        "camera 3",
        "frozen",
        ["camera 3"] * 2,
    )  # for the answer, and for the list


def test_new_listeners_cost_one_list_a_second_whatever_changes():
    with serving() as client:
        for index in range(40):
            client.infer(pictures(1), stream=f"camera {index}")
        board, made, summaries = client.service.board, [], []
        make, summary = board._make, client.service.summary
        board._make = lambda: made.append(time.monotonic()) or make()
        started = time.monotonic()
        for number in range(32):
            assert client.post("/streams/camera%205", {"action": "unfreeze" if number % 2 else "freeze"})[0] == 200
            client.service.summary = lambda name, stream: summaries.append(name) or summary(name, stream)
            with listening(client.port) as answer:
                assert answer.readline().startswith(b"data: {")
            client.service.summary = summary  # what answers an action is not counted
        lists = 1 + (time.monotonic() - started) / EVERY
        assert len(made) <= lists
        assert len(summaries) <= 40 * lists


def test_what_changed_is_not_lost_with_the_listener_that_asked_first():
    service = Service(small_engine(), Settings())
    service.run([Job(pictures(1), "gate")])

    async def run():
        before = await service.board.latest()
        service.act("gate", "freeze")
        await asyncio.sleep(EVERY)
        leaving = asyncio.ensure_future(service.board.latest())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        after = await service.board.latest()
        shown = after.changes if after.number == before.number + 1 else after.everything
        return [each["status"] for each in json.loads(shown)["streams"]]

    assert asyncio.run(run()) == ["frozen"]


@contextlib.contextmanager
def listening(port, address="127.0.0.1"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20, source_address=(address, 0))
    connection.request("GET", "/events")
    with contextlib.closing(connection), contextlib.closing(connection.getresponse()) as answer:
        yield answer


def test_a_client_has_so_many_listeners_and_another_one_has_its_own():
    with serving() as client:

        def status(address):
            with listening(client.port, address) as answer:
                return answer.status

        with contextlib.ExitStack() as stack:
            mine = [stack.enter_context(listening(client.port)) for _ in range(LISTENERS)]
            assert all(answer.readline().startswith(b"data: {") for answer in mine)
            assert (status("127.0.0.1"), status("127.0.0.2")) == (429, 200)
        wait_until(lambda: status("127.0.0.1") == 200)


# ---- streams that come and go


def test_a_stream_that_is_going_away_is_gone_for_everybody():
    engine = GatedEngine()
    with serving(engine) as client:
        client.infer(pictures(2), stream="gate")
        engine.gate.clear()
        engine.entered.clear()
        busy = in_background(1, lambda _: client.infer(pictures(1), stream="other"))
        assert engine.entered.wait(10)
        where = f"/streams/{quote('gate')}"
        asks = [
            lambda: client.ask("DELETE", where)[0],
            lambda: client.ask("DELETE", where)[0],
            lambda: client.get(where)[0],
            lambda: client.get("/states/gate")[0],
            *(
                lambda action=action: client.post(where, {"action": action})[0]
                for action in ("freeze", "reset", "rollback")
            ),
        ]
        ends = []
        for number, ask in enumerate(asks, start=1):  # all of them find the stream, and wait for the model's thread
            ends.append(in_background(1, lambda _, ask=ask: ask()))
            wait_until(lambda number=number: client.service.batcher.queue.amount == number)
        engine.gate.set()
        busy()
        assert [end()[0] for end in ends] == [200, 404, 404, 404, 404, 404, 404]
        assert "gate" not in client.service.engine.counts()
        assert "gate" not in client.service.history.frozen


def test_new_streams_are_written_in_groups(tmp_path):
    from neotta.deploy.serve.history import History

    service = Service(small_engine(folder=tmp_path), Settings(), History(tmp_path))
    count = 2 * REFRESHED + 10
    for index in range(count):
        service.run([Job(pictures(1), f"camera {index}", True)])
    said = []
    service.history._database.set_trace_callback(said.append)
    assert [service.record() for _ in range(4)] == [True, True, False, False]
    commits = sum(text == "COMMIT" for text in said)
    assert commits <= 8  # a group's points, and its snapshots
    assert all(len(service.history.snapshots(f"camera {index}")) == 1 for index in range(count))
    service.run([Job(pictures(1), "camera 0")])
    service.record()
    assert len(service.history.snapshots("camera 0")) == 1  # the next is due in an hour


# ---- what is learnt from


def test_rows_whose_embeddings_are_fine_but_not_their_logits_are_not_learnt_from():
    engine = small_engine()
    forward = engine._forward

    def odd(images):
        plain, embeddings = forward(images)
        plain[0, 0] = 1e9
        return plain, embeddings

    engine._forward = odd
    found = engine.predict(pictures(3), ["gate"] * 3)
    assert found.learnt.tolist() == [False, True, True]
    assert engine.counts() == {"gate": 2}
    assert np.isfinite(found.adapted).all()
