"""Documents of answers: always JSON, whatever the numbers."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from api_server import tiny_codec

from trueup.serve.answer import Piece, Placed
from trueup.serve.openai_answers import (
    ChatWriter,
    Choice,
    CompletionWriter,
    Frame,
    Usage,
    json_bytes,
)
from trueup.serve.request import Token

IMPOSSIBLE = Token(65, -math.inf, ((66, 0.0), (65, -math.inf)))


@pytest.mark.parametrize("kind", [ChatWriter, CompletionWriter])
def test_a_log_probability_of_minus_infinity_is_openais_number(kind: Any) -> None:
    writer = kind(Frame("x", 0, "m", "f"), tiny_codec(), logprobs=True, with_usage=False)
    placed = (Placed(IMPOSSIBLE, 0),)
    whole = writer.whole([Choice(0, "A", placed, "stop")], Usage(1, 1, 0))
    (chunk,) = writer.chunk(0, Piece("A", placed, 1))
    for document in (whole, chunk.removeprefix(b"data: ")):
        assert json.loads(document, parse_constant=pytest.fail)
        assert document.count(b"-9999.0") == 2


def test_what_json_has_no_word_for_is_never_sent() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_bytes({"x": math.nan})
