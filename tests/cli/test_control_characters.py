from __future__ import annotations

from PIL import Image

from neotta.evaluate.records import Records


def test_names_of_files_do_not_control_the_terminal(command, tmp_path):
    for name in ("evil\x1b[2J\x07", "good"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "photos" / name / "a.png")
        (tmp_path / "photos" / name / "bad\x1b]0;title\x07.png").write_bytes(b"no image")
    done = command("data", "info", "photos", "--full", folder=tmp_path, width=200)
    assert not {"\x1b", "\x07"} & {*done.stdout, *done.stderr}
    done = command("data", "info", "no\x1b[2Jthing", folder=tmp_path)
    assert done.returncode == 2
    assert "\x1b" not in done.stderr
    assert "no\\x1b[2Jthing" in done.stderr


def test_names_in_records_do_not_control_the_terminal(command, tmp_path):
    for method in ("none", "evil\x1b[2J"):
        content = {"method": method, "preset": "paper", "options": {}, "model": "a\x1b[31m", "data": "b\x07"}
        content |= {"protocol": "online", "domains": ["c\x1b[1m"], "domain": "c\x1b[1m", "stream": "iid"}
        content |= {"stream_options": {}, "samples": 10, "evaluate": -1, "seed": 1, "batch_size": 2, "status": "ok"}
        Records(tmp_path / "r.jsonl").append({"key": method, **content, "metrics": {"top1": 1.0}})
    for form in ("table", "markdown", "csv"):
        done = command("compare", "r.jsonl", "--format", form, folder=tmp_path, width=200)
        assert done.returncode == 0
        assert "\\x1b" in done.stdout
        assert not {"\x1b", "\x07"} & {*done.stdout, *done.stderr}
