"""What `trueup.schema` offers is loaded when it is asked for, each name with no more than it needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import trueup.schema


@pytest.mark.parametrize("name", trueup.schema.__all__)
def test_every_name_that_is_offered_is_there(name: str) -> None:
    assert getattr(trueup.schema, name) is not None


def test_a_name_is_the_same_by_either_way() -> None:
    from trueup.schema.run import RunRecord

    assert trueup.schema.RunRecord is RunRecord


def test_a_name_that_is_not_offered_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'RunRecrod'"):
        _ = trueup.schema.RunRecrod  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="RunRecrod"):
        exec("from trueup.schema import RunRecrod")


def test_an_error_is_raised_without_loading_a_record() -> None:
    probe = (
        "import sys\nfrom trueup.schema import InputError\n"
        "print(*sorted(n for n in sys.modules if n.startswith(('trueup.', 'pydantic'))))\n"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["trueup.schema", "trueup.schema.errors"]
