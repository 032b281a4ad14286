"""One streamed answer as its chunks come: when the text came, what the server counted, what was wrong.

The protocol is OpenAI's, for chat and for completions. A chunk that holds a role and no text is no token, so
the first token is the first text (vLLM once counted the role: vllm#8115). Some servers send text of a model's
thinking under another key; it is text all the same.
"""

from __future__ import annotations

import json
from typing import Any

from trueup.schema import RequestError
from trueup.schema.counting import counted

from .usage import Told, read_usage

DONE = b"[DONE]"
_TEXTS = ("content", "reasoning_content", "reasoning", "tool_calls", "refusal")
MOST_REASON = 300  # characters
MOST_CHUNKS = 1_000_000  # of one answer: a stream of more does not end


class BrokenAnswerError(Exception):
    """Why an answer is none."""

    def __init__(self, kind: RequestError, reason: str) -> None:
        super().__init__(reason)
        self.kind: RequestError = kind


class Answer:
    """What has come by now. Times are the client's."""

    def __init__(self) -> None:
        self.first_s: float | None = None
        self.last_s: float | None = None
        self.gaps_s: list[float] = []
        self.chunks = 0
        self.text_bytes = 0
        self.usage: Told | None = None
        self.finish: str | None = None
        self.ended = False

    def take(self, data: bytes, at_s: float) -> None:
        """One event that came at this time. Raises BrokenAnswerError."""
        if self.ended:
            return
        if data.strip() == DONE:
            self.ended = True
            return
        chunk = _object(data)
        if chunk.get("error"):
            raise BrokenAnswerError("server_error", f"the stream holds an error: {reason_of(chunk)}")
        if chunk.get("usage") is not None:
            self.usage = read_usage(chunk["usage"])
        choices = chunk.get("choices", [])
        if not isinstance(choices, list) or not all(isinstance(one, dict) for one in choices):
            raise BrokenAnswerError("malformed", "a chunk's `choices` is no list of objects")
        if choices:
            self._see(choices[0], at_s)

    def require_whole(self) -> None:
        """Raises BrokenAnswerError where the stream has ended before the answer did, or brought no text."""
        if not self.ended and self.finish is None:
            raise BrokenAnswerError(
                "disconnected",
                f"the stream ended after {counted(self.chunks, 'chunk')}, before the answer did",
            )
        if not self.chunks:
            told = "none" if self.usage is None or self.usage.output is None else self.usage.output
            raise BrokenAnswerError("empty", f"an answer without text; tokens by the server's count: {told}")

    def _see(self, choice: dict[str, Any], at_s: float) -> None:
        finish = choice.get("finish_reason")
        if isinstance(finish, str):
            self.finish = reason_of(finish)
        texts = _texts_of(choice)
        if not texts:
            return
        if self.last_s is None:
            self.first_s = at_s
        else:
            self.gaps_s.append(at_s - self.last_s)
        self.last_s = at_s
        self.chunks += 1
        self.text_bytes += sum(len(text.encode("utf-8", "replace")) for text in texts)
        if self.chunks > MOST_CHUNKS:
            raise BrokenAnswerError("malformed", f"an answer of more than {MOST_CHUNKS:,} chunks")


def reason_of(body: Any) -> str:
    """What an error in OpenAI's form says, or the body itself, on one line of bounded length."""
    error = body.get("error", body) if isinstance(body, dict) else body
    message = error.get("message") if isinstance(error, dict) else error
    words = " ".join(str(error if message is None else message).split())[:MOST_REASON]
    return words.encode("utf-8", "replace").decode()  # JSON can hold half a character, which no file can


def _texts_of(choice: dict[str, Any]) -> list[str]:
    """Those that are not empty; of what is no text, as calls of tools are, what is written of it. Raises
    BrokenAnswerError for a number, which is no text in any protocol."""
    delta = choice.get("delta")
    held = [delta.get(key) for key in _TEXTS] if isinstance(delta, dict) else [choice.get("text")]
    number = next((one for one in held if isinstance(one, int | float)), None)  # true and false too
    if number is not None:
        raise BrokenAnswerError("malformed", f"a chunk's text is no text: {str(number)[:40]}")
    return [str(one) for one in held if one]


def _object(data: bytes) -> dict[str, Any]:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BrokenAnswerError("encoding", f"a chunk is not UTF-8: {error.reason}") from None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise BrokenAnswerError("malformed", f"a chunk is not JSON: {reason_of(text)[:80]!r}") from None
    if not isinstance(found, dict):
        raise BrokenAnswerError("malformed", f"a chunk is no JSON object: {reason_of(text)[:80]!r}")
    return found
