"""Models for the tests of this room: tiny, tiny with its head tied to its embedding, one that has learnt."""

from __future__ import annotations

import pytest

from trueup.model.builtin import ResolvedModel, resolve_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ResolvedModel:
    return resolve_model("tiny", tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session")
def tied(tmp_path_factory: pytest.TempPathFactory) -> ResolvedModel:
    """Tiny with its head tied to its embedding."""
    from trueup.model.tiny import write_tiny

    folder = tmp_path_factory.mktemp("tied")
    write_tiny(folder, tied_head=True)
    return resolve_model(str(folder), folder)


@pytest.fixture(scope="session")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> ResolvedModel:
    """Tied tiny after some training on the standard library's docstrings: its layers do different things, and
    its answers follow from the text."""
    from docstring_rows import train_on_docstrings

    from trueup.model.tiny import write_tiny

    folder = tmp_path_factory.mktemp("learnt")
    write_tiny(folder, tied_head=True)
    train_on_docstrings(folder)
    return resolve_model(str(folder), folder)
