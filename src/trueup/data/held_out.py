"""Whether what was held out is enough to go by, and as large as was asked: few records fall unevenly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trueup.recipe.models import SplitSection
from trueup.schema.counting import counted

FEW_TOKENS = 100  # supervised ones: a perplexity over fewer follows single words
FEW_RECORDS = 1000  # from here on the shares come out near to what was asked
_OFF = 0.5  # of the share asked


def doubts_of(splits: Mapping[str, int], validation_tokens: int, asked: SplitSection) -> Iterator[str]:
    """What a person should know before believing an evaluation. `splits`: examples by split;
    `validation_tokens`: the supervised ones of validation."""
    held, total = splits["validation"], sum(splits.values())
    if held and validation_tokens < FEW_TOKENS:
        tokens = counted(validation_tokens, "supervised token")
        yield (
            f"validation has {tokens} in {counted(held, 'example')}: a perplexity over so few says little; "
            "give more records, or a larger data.split.validation"
        )
    shares = {"validation": asked.validation, "test": asked.test}
    off = [name for name, share in shares.items() if abs(splits[name] - share * total) > _OFF * share * total]
    if off and total < FEW_RECORDS:
        told = ", ".join(f"{splits[name]} in {name} where {shares[name]:.0%} was asked" for name in off)
        yield (
            f"of {counted(total, 'example')} there are {told}: where a record falls follows from its "
            "content, and few records fall unevenly"
        )
