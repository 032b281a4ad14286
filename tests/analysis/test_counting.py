"""Numbers of things in words."""

from __future__ import annotations

import pytest

from trueup.schema.counting import counted, counted_as


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (1234, "1,234 rows")]
)
def test_one_of_a_thing_is_not_several(number: int, words: str) -> None:
    assert counted(number, "row") == words


def test_what_has_a_plural_of_its_own_says_it() -> None:
    assert counted(2, "copy", "copies") == "2 copies"


def test_a_number_as_it_is_written_keeps_its_digits() -> None:
    assert [counted_as(text, "run") for text in ("1", "1.5")] == ["1 run", "1.5 runs"]
