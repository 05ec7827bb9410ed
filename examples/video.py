"""Frames of a video file or an RTSP camera, classified by a model that adapts to it.

    pip install 'neotta[lab]' av
    python examples/video.py street.mp4 --every 5
    python examples/video.py rtsp://camera/stream --every 25 --state street.safetensors

Frames that follow each other are nearly the same picture: every fifth or so teaches as much, and costs less.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import av
import torch
from av.video.frame import VideoFrame

import neotta


def frames(source: str, every: int) -> Iterator[VideoFrame]:
    """Every n-th frame; a camera whose connection breaks is opened again."""
    live = "://" in source
    while True:
        try:
            with av.open(source, timeout=10 if live else None) as video:
                for number, frame in enumerate(video.decode(video=0)):
                    if number % every == 0:
                        yield frame
        except av.FFmpegError as error:
            if not live:
                raise
            print(f"{source}: {error}; trying again")
        if not live:
            return
        time.sleep(1)


def main() -> None:
    """Print a line when the answer changes, and how the stream is at the end of it, or on Ctrl-C."""
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("--model", default="digits")
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--state", type=Path, help="where to go on from, and to keep what was learnt")
    asked = parser.parse_args()
    loaded = neotta.load_model(asked.model)
    model = neotta.adapt(loaded.model)
    if asked.state is not None and asked.state.exists():
        neotta.load(model, asked.state)
    before = None
    try:
        for frame in frames(asked.source, asked.every):
            with torch.inference_mode():
                best = int(model(loaded.preprocess(frame.to_image())[None]).argmax())
            if best != before:
                print(f"{frame.time or 0:.1f} s: {loaded.labels[best]}", flush=True)
            before = best
    finally:
        print(neotta.health(model))
        if asked.state is not None:
            neotta.save(model, asked.state)


if __name__ == "__main__":
    main()
