"""Cameras shared by several replicas through Redis.

Every replica adds what it has learnt since its last visit, in one atomic step on the server: moments are sums, so
replicas never overwrite each other, whatever the order. Each addition has a number, and the server remembers the last
one of every replica: an addition that was sent twice, because an answer was lost, counts once. While Redis cannot be
reached, answers go on and additions wait.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from neotta._extras import need
from neotta.deploy.serve.logs import log
from neotta.deploy.serve.shared_moments import Shared, difference
from neotta.errors import StorageError

PAUSE = 1.0
"""Seconds before Redis is tried again after it could not be reached."""

REMEMBERED = 7 * 24 * 3600
"""Seconds that the last addition of a replica is remembered."""

ADD = """
local fields = {'weight', 'mean', 'second', 'third', 'sums'}
local function numbers(text)
  local found, place = {}, 1
  for index = 1, #text / 8 do found[index], place = struct.unpack('<d', text, place) end
  return found
end
local function bytes(list)
  local found = {}
  for index = 1, #list do found[index] = struct.pack('<d', list[index]) end
  return table.concat(found)
end
local old = redis.call('HMGET', KEYS[1], 'generation', unpack(fields))
local last = tonumber(redis.call('HGET', KEYS[2], ARGV[1]) or '0')
if tonumber(ARGV[2]) > last then
  local new = {}
  for index, name in ipairs(fields) do new[name] = numbers(ARGV[index + 2]) end
  if old[2] then
    local one = {}
    for index, name in ipairs(fields) do one[name] = numbers(old[index + 1]) end
    local n, m = one.weight[1], new.weight[1]
    local total = n + m
    if total <= 0 then total = 1 end
    local apart = 0
    for index = 1, #one.mean do
      local step = new.mean[index] - one.mean[index]
      local between = step * step * n * m / total
      if #one.third > 0 then
        new.third[index] = one.third[index] + new.third[index] + step ^ 3 * n * m * (n - m) / total ^ 2
          + 3 * step * (n * new.second[index] - m * one.second[index]) / total
      end
      if #one.second == #one.mean then
        new.second[index] = one.second[index] + new.second[index] + between
      else
        apart = apart + between
      end
      new.mean[index] = one.mean[index] + step * m / total
    end
    if #one.second ~= #one.mean then new.second[1] = one.second[1] + new.second[1] + apart end
    for index = 1, #one.sums do new.sums[index] = one.sums[index] + new.sums[index] end
    new.weight[1] = n + m
  end
  for index, name in ipairs(fields) do redis.call('HSET', KEYS[1], name, bytes(new[name])) end
  redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
  redis.call('EXPIRE', KEYS[2], ARGV[8])
  redis.call('SADD', KEYS[3], ARGV[9])
end
return redis.call('HMGET', KEYS[1], 'generation', unpack(fields))
"""

_FIELDS = ("generation", *Shared._fields)


class _Sent(NamedTuple):
    """An addition whose fate is not known: its number, what was added, and what this replica had then."""

    number: int
    moments: Shared
    had: Shared


class Kept(NamedTuple):
    """What the server holds of a camera: how often it was restarted, and its moments."""

    generation: int
    moments: Shared | None


class RedisShare:
    """The shared moments of one head's cameras. Not thread-safe: one thread owns it.

    Args:
        url: `redis://HOST:PORT/DB`, also `rediss://` (TLS) and `unix://`.
        owner: Identifies the model and the rule; others share nothing with it.
        replica: A name of this replica, unlike any other; drawn by default.

    Raises:
        StorageError: Redis cannot be reached at the start.
    """

    def __init__(self, url: str, owner: str, replica: str | None = None) -> None:
        self._redis = need("redis", "sharing the state of cameras")
        self._client = self._redis.Redis.from_url(url, socket_timeout=2.0, socket_connect_timeout=1.0)
        self._add = self._client.register_script(ADD)
        self._prefix = "neotta:" + hashlib.sha256(owner.encode()).hexdigest()[:16]
        self._replica = replica or uuid.uuid4().hex
        self._had: dict[str, Shared | None] = {}  # what this replica had when it and the server last agreed
        self._generations: dict[str, int] = {}
        self._sent: dict[str, _Sent] = {}
        self._numbers: dict[str, int] = {}
        self._retry = 0.0
        self.delivered = 0
        try:
            self._client.ping()
        except self._redis.RedisError as error:
            raise StorageError(f"Redis cannot be reached at {_shown(url)}: {error}") from error

    # ---- names of keys; those of a camera are on one node of a cluster

    def _key(self, camera: str) -> str:
        return f"{self._prefix}:{{{camera}}}"

    def cameras(self) -> list[str]:
        """All cameras that any replica knows."""
        with_errors = self._try(lambda: self._client.smembers(f"{self._prefix}:cameras"))
        return sorted(each.decode() for each in with_errors or ())

    # ---- reading

    def fetch(self, cameras: Sequence[str]) -> dict[str, Shared]:
        """What the server holds of cameras that this replica has not met; nothing while it cannot be reached."""
        unknown = [camera for camera in cameras if camera not in self._had]
        if not unknown:
            return {}
        answers = self._try(lambda: self._pipeline("hmget", unknown))
        if answers is None:
            return {}
        found = {}
        for camera, parts in zip(unknown, answers, strict=True):
            self._generations[camera], self._had[camera] = kept = _kept(parts)
            if kept.moments is not None:
                found[camera] = kept.moments
        return found

    def _pipeline(self, command: str, cameras: Sequence[str]) -> list[Any]:
        pipe = self._client.pipeline(transaction=False)
        for camera in cameras:
            getattr(pipe, command)(self._key(camera), _FIELDS)
        return list(pipe.execute())

    # ---- adding

    def add(self, states: dict[str, Shared]) -> dict[str, tuple[Shared, bool]]:
        """Add what cameras learnt since the last visit.

        Args:
            states: The moments of each camera as this replica has them.

        Returns:
            What the server holds of each camera now, and whether another replica restarted it. Cameras that
            are missing were not delivered, and have to be given again.
        """
        unsure = {camera: now for camera, now in states.items() if camera in self._sent}
        first = self._deliver(unsure)  # what was sent before without an answer; the server knows whether it came
        if len(first) < len(unsure):
            return {}
        rest = {camera: now for camera, now in states.items() if camera not in first or self._more(camera, now)}
        kept = {**first, **self._deliver(rest)}
        done: dict[str, tuple[Shared, bool]] = {}
        for camera, (generation, moments) in kept.items():
            if camera not in self._sent and moments is not None:
                done[camera] = moments, generation != self._generations.get(camera, 0)
                self._generations[camera], self._had[camera] = generation, moments
        return done

    def _more(self, camera: str, now: Shared) -> bool:
        """Whether a camera learnt something since its last addition."""
        had = self._had.get(camera)
        return had is None or bool((now.sums != had.sums).any())

    def _deliver(self, states: dict[str, Shared]) -> dict[str, Kept]:
        """Send one addition for each camera, together."""
        if not states:
            return {}
        for camera, now in states.items():
            if camera not in self._sent:
                had = self._had.get(camera)
                self._numbers[camera] = self._numbers.get(camera, 0) + 1
                added = now if had is None else difference(now, had)
                self._sent[camera] = _Sent(self._numbers[camera], added, now)
        answers = self._try(lambda: self._run(states))
        if answers is None:
            return {}
        found = {camera: _kept(parts) for camera, parts in zip(states, answers, strict=True)}
        for camera in found:
            self._had[camera] = self._sent.pop(camera).had
        self.delivered += len(found)
        return found

    def _run(self, states: Iterable[str]) -> list[Any]:
        pipe = self._client.pipeline(transaction=False)
        for camera in states:
            number, moments, _ = self._sent[camera]
            key = self._key(camera)
            keys = [key, f"{key}:seen", f"{self._prefix}:cameras"]
            self._add(keys, [self._replica, number, *moments.pack(), REMEMBERED, camera], client=pipe)
        return list(pipe.execute())

    # ---- replacing

    def replace(self, camera: str, moments: Shared | None) -> None:
        """Restart a camera from these moments, for all replicas.

        Raises:
            StorageError: Redis cannot be reached.
        """

        def run() -> Any:
            pipe = self._client.pipeline(transaction=True)
            pipe.hdel(self._key(camera), *Shared._fields)
            pipe.hincrby(self._key(camera), "generation", 1)
            if moments is None:
                pipe.srem(f"{self._prefix}:cameras", camera)
            else:
                pipe.hset(self._key(camera), mapping=dict(zip(Shared._fields, moments.pack(), strict=True)))
                pipe.sadd(f"{self._prefix}:cameras", camera)
            return pipe.execute()

        self._retry = 0.0
        if self._try(run) is None:
            raise StorageError("Redis cannot be reached: nothing was changed")
        self._had.pop(camera, None)
        self._sent.pop(camera, None)
        self.fetch([camera])

    def forget(self, camera: str) -> None:
        """Drop what this replica remembers of a camera that has nothing to deliver; the server keeps it."""
        if camera not in self._sent:
            self._had.pop(camera, None)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _try(self, work: Any) -> Any:
        """Run something on the server; None while it cannot be reached."""
        if time.monotonic() < self._retry:
            return None
        try:
            found = work()
        except (self._redis.ConnectionError, self._redis.TimeoutError) as error:
            if not self._retry:
                log("warning", redis=f"cannot be reached, answers go on and updates wait: {error}")
            self._retry = time.monotonic() + PAUSE
            return None
        except self._redis.RedisError as error:
            raise StorageError(f"Redis refused what was learnt: {error}") from error
        if self._retry:
            log("warning", redis="can be reached again")
        self._retry = 0.0
        return found


def _kept(parts: Sequence[bytes | None]) -> Kept:
    generation, *rest = parts
    known = [part for part in rest if part is not None]
    whole = len(known) == len(Shared._fields)
    return Kept(int(generation or 0), Shared.unpack(known) if whole else None)


def _shown(url: str) -> str:
    """An address without its password."""
    return url.rpartition("@")[2] if "@" in url else url.partition("://")[2]
