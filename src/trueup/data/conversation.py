"""What makes a conversation: the names of roles, their order, and text that can be tokenised.

The order that is accepted: a system turn or none, then user and assistant in turn. Whatever else (two answers
in a row, an answer to nothing, a late system turn) is dropped as `role_order`: a template would either refuse
it or write something that no server ever sends."""

from __future__ import annotations

from collections.abc import Sequence

from .records import ROLES, TEXT, RowError, Turn, excerpt

ROLE_NAMES = {
    **{role: role for role in ROLES},
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "developer": "system",
}
TOOL_ROLES = frozenset(
    {"tool", "tool_call", "tool_response", "function", "function_call", "observation", "ipython"}
)


def role_of(name: str) -> str:
    """One of ROLES. Raises RowError: tool_call, unknown_role."""
    known = ROLE_NAMES.get(name.strip().lower())
    if known is not None:
        return known
    if name.strip().lower() in TOOL_ROLES:
        raise RowError("tool_call", f"a turn of role '{excerpt(name)}'; tool calls are not trained on")
    raise RowError("unknown_role", f"role '{excerpt(name)}'; known are {', '.join(ROLE_NAMES)}")


def checked(turns: Sequence[Turn]) -> tuple[tuple[Turn, ...], int]:
    """The turns up to the last answer, and how many after it were left off (nothing there carries loss).

    Raises RowError: invalid_text, nul_character, no_answer, empty_answer (any assistant turn without text),
    empty_question (any user turn without text), empty_text, role_order.
    """
    for turn in turns:
        _check_text(turn)
    if len(turns) == 1 and turns[0].role == TEXT:
        if not turns[0].content.strip():
            raise RowError("empty_text", "nothing but white space")
        return tuple(turns), 0
    last = max((i for i, turn in enumerate(turns) if turn.role == "assistant"), default=None)
    if last is None:
        raise RowError("no_answer", f"no assistant turn among {len(turns)} turns")
    kept = tuple(turns[: last + 1])
    if any(turn.role == "assistant" and not turn.content.strip() for turn in kept):
        question = next((turn.content for turn in kept if turn.role == "user"), "")
        raise RowError("empty_answer", f"an answer without text, after: {excerpt(question)}")
    if any(turn.role == "user" and not turn.content.strip() for turn in kept):
        answer = next(turn.content for turn in kept if turn.role == "assistant")
        raise RowError("empty_question", f"a question without text, before: {excerpt(answer)}")
    _check_order(kept)
    return kept, len(turns) - len(kept)


def _check_text(turn: Turn) -> None:
    """Half of a surrogate pair is refused by every encoder; a NUL is never text, and ends one in C."""
    try:
        turn.content.encode("utf-8")
    except UnicodeEncodeError as error:
        bad = ord(turn.content[error.start])
        what = (
            f"a byte that is not UTF-8 ({bad - 0xDC00:#x})"
            if 0xDC80 <= bad <= 0xDCFF
            else "half of a surrogate pair"
        )
        raise RowError("invalid_text", f"{turn.role} turn holds {what} at character {error.start}") from None
    if "\0" in turn.content:
        raise RowError(
            "nul_character", f"{turn.role} turn holds a NUL at character {turn.content.index(chr(0))}"
        )


def _check_order(turns: Sequence[Turn]) -> None:
    first = 1 if turns[0].role == "system" else 0
    for at, turn in enumerate(turns[first:], start=first):
        expected = ("user", "assistant")[(at - first) % 2]
        if turn.role != expected:
            before = f"after '{turns[at - 1].role}'" if at else "at the start"
            raise RowError(
                "role_order", f"turn {at + 1} is '{turn.role}' {before}, where '{expected}' was expected"
            )
