"""A quantised folder is served as the quality gate judged it to the byte, or where that is asked for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from in_process import Done, call, refused
from trueup.model.builtin import ResolvedModel
from trueup.model.quality_file import judged_digest, write_quality
from trueup.model.quantize import Wanted
from trueup.model.quantize_folder import quantise_to
from trueup.model.tiny import write_tiny
from trueup.schema.quality import QUALITY_FILE, QUALITY_FORMAT, QualityLimits, QualityRecord
from trueup.schema.quantization import FACTS_FILE

CHECK = ("--context", "64", "--concurrency", "2", "--device", "cpu", "--check")


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be changed: copy it."""
    folder = tmp_path_factory.mktemp("models")
    write_tiny(folder / "tiny")
    out = folder / "int8"
    resolved = ResolvedModel(folder / "tiny", "tiny", "a test's")
    quantise_to(out, resolved, Wanted("int8", head="int8"), None, lambda text: None)
    write_quality(out, record_of(out))
    return out


def record_of(folder: Path) -> QualityRecord:
    return QualityRecord(
        format=QUALITY_FORMAT,
        trueup_version="0",
        original="tiny",
        scheme="int8",
        method="rtn",
        weights_digest=judged_digest(folder),
        verdict="accepted",
        reasons=(),
        held_out="a test's",
        limits=QualityLimits(),
        checks=(),
        worst_layers=(),
        measurements={},
    )


def flipped(folder: Path) -> None:
    """One bit of a weight, in the middle of the file."""
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "model.safetensors").write_bytes(content)


def missing(folder: Path) -> None:
    (folder / QUALITY_FILE).unlink()


def edited(folder: Path) -> None:
    content = json.loads((folder / QUALITY_FILE).read_text())
    (folder / QUALITY_FILE).write_text(json.dumps({**content, "limits": {"kl_nats": 9.0}}))


def unsaid(folder: Path) -> None:
    (folder / FACTS_FILE).write_text((folder / FACTS_FILE).read_text() + "\n")


Change = Callable[[Path], None]


def serve(folder: Path, home: Path, *more: str) -> Done:
    return call("serve", folder, *CHECK, *more, home=home)


def test_what_the_gate_accepted_is_served(judged: Path, tmp_path: Path) -> None:
    done = serve(judged, tmp_path)
    assert done.code == 0, done.err
    assert "the quality gate: accepted" in done.err


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (flipped, 1, "not those that"),
        (missing, 1, "no quality.json"),
        (edited, 2, "it was edited"),
        (unsaid, 1, "not those that"),
    ],
)
def test_what_is_not_as_it_was_judged_is_refused_but_where_it_is_asked_for_by_name(
    judged: Path, tmp_path: Path, change: Change, code: int, words: str
) -> None:
    folder = tmp_path / "int8"
    shutil.copytree(judged, folder)
    change(folder)
    refused(serve(folder, tmp_path), code, words, "--unjudged")
    done = serve(folder, tmp_path, "--unjudged")
    assert done.code == 0, done.err
    assert "warning: served all the same" in done.err
    assert words in done.err


def test_a_quantised_folder_that_says_nothing_of_itself_is_no_model(judged: Path, tmp_path: Path) -> None:
    folder = tmp_path / "int8"
    shutil.copytree(judged, folder)
    (folder / FACTS_FILE).unlink()
    refused(serve(folder, tmp_path), 1, "not those that")
    (folder / QUALITY_FILE).unlink()
    done = call("chat", folder, "-p", "hi", "--context", "64", home=tmp_path)
    refused(done, 2, "int8")


def test_one_that_was_refused_is_pointed_to_with_a_reason_a_line(judged: Path, tmp_path: Path) -> None:
    folder = tmp_path / "small.refused"
    shutil.copytree(judged, folder)
    reasons = ("KL divergence 0.3, at most 0.1 is allowed", "greedy match 0.1, at least 0.3 is allowed")
    write_quality(folder, record_of(folder).model_copy(update={"verdict": "refused", "reasons": reasons}))
    refused(serve(tmp_path / "small", tmp_path), 2, "the quality gate refused", f"`trueup serve {folder}`")
    refused(serve(folder, tmp_path), 1, *(f"\n  {reason}\n" for reason in reasons), "--unjudged")
