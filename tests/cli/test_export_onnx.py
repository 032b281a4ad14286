"""`trueup export RUN --onnx DIR`."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from in_process import Main, refused
from trueup.model.onnx_export import PACKAGES


@pytest.mark.slow
@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in PACKAGES), reason="the extra onnx is not installed"
)
def test_a_run_leaves_as_an_onnx_graph_with_its_card(main: Main, finished: Path, tmp_path: Path) -> None:
    done = main("export", "last", "--onnx", tmp_path / "onnx", "--json")
    assert done.code == 0, done
    found = json.loads(done.out)
    assert (found["kind"], found["type"], found["check"]["reader"]) == ("ONNX graph", "f32", "ONNX Runtime")
    assert "as ONNX Runtime runs it" in (tmp_path / "onnx" / "README.md").read_text()


def test_without_its_packages_it_says_what_to_install(
    main: Main, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trueup.model.onnx_export.PACKAGES", ("a_package_that_is_not_there",))
    done = main("export", "last", "--onnx", tmp_path / "onnx")
    refused(done, 2, "trueup[onnx]")
    assert not (tmp_path / "onnx").exists()
