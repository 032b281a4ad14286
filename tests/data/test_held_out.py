"""What is said of a validation split that is too small to go by, or not as large as was asked."""

from __future__ import annotations

from trueup.data.held_out import doubts_of
from trueup.recipe.models import SplitSection

ASKED = SplitSection(validation=0.1, test=0.05)


def doubts(train: int, validation: int, test: int, tokens: int, asked: SplitSection = ASKED) -> list[str]:
    return list(doubts_of({"train": train, "validation": validation, "test": test}, tokens, asked))


def test_a_validation_of_few_supervised_tokens_is_doubted() -> None:
    (said,) = doubts(34, 4, 2, 15)
    assert "15 supervised tokens in 4 examples" in said
    assert "data.split.validation" in said


def test_a_validation_of_enough_tokens_in_the_shares_asked_is_not() -> None:
    assert doubts(850, 100, 50, 100) == []


def test_no_validation_asked_for_is_no_doubt() -> None:
    assert doubts(38, 0, 2, 0, SplitSection(validation=0, test=0.05)) == []


def test_few_records_that_fall_unevenly_are_said() -> None:
    (said,) = doubts(35, 1, 4, 500)
    assert (
        "of 40 examples there are 1 in validation where 10% was asked, 4 in test where 5% was asked" in said
    )


def test_many_records_are_not_counted_after() -> None:
    assert doubts(9_990, 5, 5, 500) == []
