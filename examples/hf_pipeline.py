"""A Hugging Face pipeline that adapts to each folder of images, as to a camera.

pip install 'neotta[hf]'
python examples/hf_pipeline.py google/vit-base-patch16-224 gate/ dock/
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from transformers import pipeline

import neotta

ENDINGS = {".jpg", ".jpeg", ".png"}


def main(name: str, folders: list[str]) -> None:
    """Classify the images of each folder in order, and say how its stream is."""
    classify = pipeline("image-classification", model=name, top_k=1)
    neotta.adapt(classify.model, streams=True)
    for folder in folders:
        files = sorted(str(path) for path in Path(folder).iterdir() if path.suffix.lower() in ENDINGS)
        with neotta.streams(folder):  # all images of all calls inside
            answers = classify(files, batch_size=8)
        print(folder, Counter(answer[0]["label"] for answer in answers).most_common(3))
        print(neotta.health(classify.model, stream=folder))
    neotta.save(classify.model, "folders.safetensors")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
