"""False alarms of cameras whose frames depend on each other, and how soon a change is noticed.

    python benchmarks/video_alarms.py --streams 8 --frames 40000

Frames are an autoregressive process, x' = memory x + noise; a change moves the mean by one standard deviation. `tested`
counts the values that were tested after thinning; alarms per tested value stay below the stated rate if what is tested
is independent enough.
"""

import argparse

import numpy as np

from neotta.deploy.serve.alarms import NUMBERS, RATE, VideoDetector


def video(frames, memory, generator, shift=0.0):
    noise = generator.normal(size=(frames, NUMBERS)) * np.sqrt(1 - memory**2)
    found = np.empty_like(noise)
    state = generator.normal(size=NUMBERS)
    for index, each in enumerate(noise):
        found[index] = state = memory * state + each
    return found + shift


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--frames", type=int, default=40_000)
    given = parser.parse_args()
    print(f"stated rate: {RATE:g} per tested value")
    print("memory  frames apart  false alarms   tested  noticed after (frames)")
    for memory in (0.0, 0.5, 0.9, 0.98):
        alarms = tested = 0
        delays = []
        for seed in range(given.streams):
            generator = np.random.default_rng(seed)
            detector = VideoDetector()
            alarms += sum(map(detector.observe, np.array_split(video(given.frames, memory, generator), 200)))
            tested += given.frames // detector.length
            changed = video(100 * detector.length, memory, generator, shift=1.0)
            delays.append(next((i + 1 for i, row in enumerate(changed) if detector.observe(row[None])), len(changed)))
        print(f"{memory:6.2f}  {detector.length:12d}  {alarms:12d}  {tested:7d}  {np.median(delays):.0f}")


if __name__ == "__main__":
    main()
