"""False alarms of cameras whose frames depend on each other, and how soon a change is noticed.

    python benchmarks/video_alarms.py --streams 8 --frames 40000

`memory` is how much a frame depends on the one before: x' = memory x + noise around the mean of its label, which stays
for `scene` frames on average and then is drawn anew; a scene of 1 draws it for every frame. `tested` counts the values
that were tested after thinning: alarms per tested value stay below the stated rate if these are independent enough.
Then the labels change (one of them becomes nine times as frequent as all others), which must raise no alarm; or all
frames move by one standard deviation of those of a label, which must. 200 times "frames apart" means that it did not.
"""

import argparse
import copy

import numpy as np

from neotta.deploy.serve.alarms import NUMBERS, RATE, VideoDetector

CLASSES = 8


def video(frames, memory, scene, generator, shares=None, apart=2.0):
    """Frames of a camera, and their labels."""
    starts = generator.random(frames) < 1 / scene
    starts[0] = True
    labels = generator.choice(CLASSES, starts.sum(), p=shares)[np.cumsum(starts) - 1]
    noise = generator.normal(size=(frames, NUMBERS)) * np.sqrt(1 - memory**2)
    state = generator.normal(size=NUMBERS)
    found = np.empty_like(noise)
    for index, each in enumerate(noise):
        found[index] = state = memory * state + each
    centres = apart * np.random.default_rng(0).normal(size=(CLASSES, NUMBERS))
    return found + centres[labels], labels


def alarms(detector, frames, labels):
    """Number of alarms."""
    parts = (np.array_split(each, 200) for each in (frames, labels))
    return sum(detector.observe(*part) for part in zip(*parts, strict=True))


def delay(detector, frames, labels):
    """Number of frames until the first alarm; all of them if there is none."""
    alarmed = (i + 1 for i in range(len(frames)) if detector.observe(frames[i : i + 1], labels[i : i + 1]))
    return next(alarmed, len(frames))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--frames", type=int, default=40_000)
    given = parser.parse_args()
    print(f"stated rate: {RATE:g} per tested value")
    print("| memory | scene | frames apart | false alarms | values tested | other labels: alarms | noticed after |")
    print("|---|---|---|---|---|---|---|")
    total = every = 0
    for memory, scene in ((0.0, 1), (0.5, 1), (0.9, 1), (0.98, 1), (0.0, 30), (0.9, 30), (0.9, 200)):
        false = tested = other = 0
        delays, lengths = [], []
        for seed in range(given.streams):
            generator = np.random.default_rng(seed)
            detector = VideoDetector(CLASSES)
            false += alarms(detector, *video(given.frames, memory, scene, generator))
            tested += given.frames // detector.length
            lengths.append(detector.length)
            shares = np.full(CLASSES, 0.1 / (CLASSES - 1))
            shares[0] = 0.9
            again = copy.deepcopy(detector)
            other += alarms(again, *video(100 * detector.length, memory, scene, generator, shares))
            frames, labels = video(200 * detector.length, memory, scene, generator)
            delays.append(delay(detector, frames + 1.0, labels))
        total, every = total + false, every + tested
        row = (memory, scene, f"{np.median(lengths):.0f}", false, f"{tested:,}", other, f"{np.median(delays):,.0f}")
        print("| " + " | ".join(map(str, row)) + " |", flush=True)
    print(f"{total} false alarms in {every:,} values: {total / every:.2g} per value")


if __name__ == "__main__":
    main()
