"""The example on zero-shot models, run as a reader does, on a small random CLIP in a folder."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch
from support.data_makers import class_folders

EXAMPLE = Path(__file__).parents[2] / "examples" / "zero_shot.py"


def save_clip(folder):
    """A CLIP of transformers with random weights, its tokenizer (letters only) and its image processor."""
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor, CLIPTokenizer

    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=64)
    images = CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    CLIPProcessor(images, tokenizer).save_pretrained(folder)
    tower = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    ends = {"bos_token_id": len(words) - 2, "eos_token_id": len(words) - 1, "pad_token_id": len(words) - 1}
    text = {**tower, **ends, "vocab_size": len(words), "max_position_embeddings": 64}
    vision = {**tower, "image_size": 32, "patch_size": 16}
    torch.manual_seed(0)
    CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=12)).save_pretrained(folder)


@pytest.mark.slow
def test_the_script_prints_its_table(tmp_path, monkeypatch, capsys):
    save_clip(tmp_path / "clip")
    class_folders(tmp_path / "photos", ["cat", "golden_retriever", "horse"], per_class=4, size=(40, 36))
    example = runpy.run_path(str(EXAMPLE))
    words = [str(tmp_path / "photos"), "--model", str(tmp_path / "clip"), "--batch", "5"]
    monkeypatch.setattr(sys, "argv", ["zero_shot.py", *words, "--template", "a {}", "--template", "a photo of a {}"])
    example["main"]()
    lines = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert [method for method, _ in lines[2:]] == list(example["METHODS"])
    assert all(0 <= float(value) <= 100 for _, value in lines[2:])
    class_folders(tmp_path / "one", ["cat"])
    monkeypatch.setattr(sys, "argv", ["zero_shot.py", str(tmp_path / "one")])
    with pytest.raises(SystemExit):
        example["main"]()
    assert "no folders of two or more classes" in capsys.readouterr().err
