"""Small files with a twist each, and what must come of them: exact turns, exact counts, or the exact error.

`ROOT` in an error stands for the folder of the case. A turn is (role, content); a record of plain text is one
("text", content)."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from typing import Any

from .writers import json_lines, parquet

Turns = list[tuple[str, str]]

LONG = "long text " * 500_000  # 5 MB


@dataclass(frozen=True)
class Case:
    name: str
    files: dict[str, bytes]
    records: list[Turns] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
    error: str = ""
    source: str = ""  # within ROOT; the only file where empty
    settings: dict[str, Any] = field(default_factory=dict)
    formats: dict[str, str] = field(default_factory=dict)  # file -> format; checked where given
    notes: tuple[str, ...] = ()


def qa(*pairs: tuple[str, str]) -> list[Turns]:
    return [[("user", question), ("assistant", answer)] for question, answer in pairs]


def pc(question: Any, answer: Any, **more: Any) -> dict[str, Any]:
    return {"prompt": question, "completion": answer, **more}


def chat(*roles: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": f"{role} {n}"} for n, role in enumerate(roles)], **more}


def said(*roles: str) -> Turns:
    return [(role, f"{role} {n}") for n, role in enumerate(roles)]


def spoken(*texts: str) -> list[dict[str, str]]:
    return [{"role": role, "content": text} for role, text in zip(("user", "assistant"), texts, strict=False)]


def lines(*rows: dict[str, Any]) -> bytes:
    return json_lines(rows)


OK = pc("Q", "A")
OK_LINE = lines(OK)
OK_READ = qa(("Q", "A"))

ENCODINGS = [
    Case("BOM before JSON lines", {"a.jsonl": b"\xef\xbb\xbf" + OK_LINE}, OK_READ),
    Case("BOM before a JSON list", {"a.json": b"\xef\xbb\xbf[" + OK_LINE + b"]"}, OK_READ),
    Case("BOM before a CSV header", {"a.csv": b"\xef\xbb\xbfprompt,completion\nQ,A\n"}, OK_READ),
    Case("BOM before plain text", {"a.txt": b"\xef\xbb\xbfOnce."}, [[("text", "Once.")]]),
    Case("BOM inside gzip", {"a.jsonl.gz": gzip.compress(b"\xef\xbb\xbf" + OK_LINE)}, OK_READ),
    Case(
        "UTF-16 JSON lines",
        {"a.jsonl": lines(pc("Q 漢😀", "A")).decode().encode("utf-16")},
        qa(("Q 漢😀", "A")),
    ),
    Case(
        "UTF-16 big-endian CSV, as a spreadsheet's 'Unicode text'",
        {"a.csv": b"\xfe\xff" + "prompt\tcompletion\r\nSí?\tSí.\r\n".encode("utf-16-be")},
        qa(("Sí?", "Sí.")),
    ),
    Case("UTF-32 JSON list", {"a.json": json.dumps([OK]).encode("utf-32")}, OK_READ),
    Case(
        "UTF-16 cut in half",
        {"a.jsonl": OK_LINE.decode().encode("utf-16")[:-1]},
        error="ROOT/a.jsonl: not utf-16-le: truncated data at byte 0",
    ),
    Case(
        "a byte that is not UTF-8 costs its line",
        {"a.jsonl": OK_LINE + OK_LINE.replace(b"Q", b"\xff") + lines(pc("R", "B"))},
        qa(("Q", "A"), ("R", "B")),
        {"unreadable_line": 1},
    ),
    Case(
        "a header that is not UTF-8",
        {"a.csv": "prömpt,completion\nQ,A\n".encode("latin-1")},
        error="ROOT/a.csv:1: the header is not UTF-8; save the file as UTF-8",
    ),
    Case(
        "a byte that is not UTF-8 costs its row of a table",
        {"a.csv": b"prompt,completion\nQ,A\nQ\xff,A\nR,B\n"},
        qa(("Q", "A"), ("R", "B")),
        {"invalid_text": 1},
    ),
    Case("a bare CR between JSON lines", {"a.jsonl": OK_LINE.replace(b"\n", b"\r") * 3}, OK_READ * 3),
    Case("a bare CR between JSON lines, .json", {"a.json": OK_LINE.replace(b"\n", b"\r") * 3}, OK_READ * 3),
    Case(
        "LF, CRLF and CR mixed, and a bad line's number",
        {"a.jsonl": OK_LINE + OK_LINE[:-1] + b"\r\n\r" + OK_LINE[:-1] + b"\rnot JSON\r"},
        OK_READ * 3,
        {"unreadable_line": 1},
    ),
    Case("a bare CR between rows", {"a.csv": b"prompt,completion\rQ,A\rR,B\r"}, qa(("Q", "A"), ("R", "B"))),
    *(
        Case(
            f"{encoding} without a mark, {name}",
            {name: text.encode(encoding)},
            error=f"ROOT/{name}: not UTF-8: it holds NULs, as UTF-16 without a byte order mark does; save "
            "it as UTF-8, or with the mark",
        )
        for encoding in ("utf-16-le", "utf-16-be", "utf-32-le")
        for name, text in {
            "a.jsonl": OK_LINE.decode() * 2,
            "a.json": f"[{OK_LINE.decode()}]",
            "a.csv": "prompt,completion\nQ,A\n",
            "a.txt": "Once upon a time.",
            "b.csv": "prompt,completion\n一加一是多少？,是二。\n再说一次，好吗？,好的，一加一是二。\n",
        }.items()
    ),
    Case("CRLF between JSON lines", {"a.jsonl": OK_LINE.replace(b"\n", b"\r\n") * 2}, OK_READ * 2),
    Case(
        "CRLF between rows and inside a field",
        {"a.csv": b'prompt,completion\r\nQ,"A\r\nB"\r\n'},
        qa(("Q", "A\r\nB")),
    ),
    Case("CRLF in plain text is a line end", {"a.txt": b"a\r\nb\r\n"}, [[("text", "a\nb\n")]]),
]

NULS = [
    Case("NUL as an escape", {"a.jsonl": lines(OK, pc("Q\0", "A"))}, OK_READ, {"nul_character": 1}),
    Case(
        "NUL bytes in a line, as after a power cut",
        {"a.jsonl": OK_LINE + b"\0" * 64 + OK_LINE},
        OK_READ,
        {"unreadable_line": 1},
    ),
    Case("NUL in a table", {"a.csv": b"prompt,completion\nQ,A\nQ,A\0\n"}, OK_READ, {"nul_character": 1}),
    Case(
        "NUL in a table, strict",
        {"a.csv": b"prompt,completion\nQ,A\nQ,A\0\n"},
        error="ROOT/a.csv:3: nul_character: assistant turn holds a NUL at character 1. Mend the line, or set "
        "data.strict to false to count such lines and use the rest",
        settings={"strict": True},
    ),
    Case(
        "NUL in plain text",
        {"a.txt": b"a\0b", "b.txt": b"c"},
        [[("text", "c")]],
        {"nul_character": 1},
        source=".",
    ),
]

SIZES = [
    Case("a line of 5 MB", {"a.jsonl": lines(OK, pc(LONG, "A"))}, qa(("Q", "A"), (LONG, "A"))),
    Case(
        "a list item of 5 MB",
        {"a.json": json.dumps([pc(LONG, "A"), OK]).encode()},
        qa((LONG, "A"), ("Q", "A")),
    ),
    Case(
        "a table field of 5 MB",
        {"a.csv": f"prompt,completion\n{LONG},A\nQ,A\n".encode()},
        qa((LONG, "A"), ("Q", "A")),
    ),
    Case(
        "a value of 5 MB in a column",
        {"a.parquet": parquet([pc(LONG, "A"), OK])},
        qa((LONG, "A"), ("Q", "A")),
    ),
    Case(
        "a conversation of 100 turns",
        {"a.jsonl": lines(chat(*("user", "assistant") * 50))},
        [said(*("user", "assistant") * 50)],
    ),
]

FIELDS = [
    Case(
        "an object, a list or null where text is expected",
        {"a.jsonl": lines(OK, pc("Q", {"city": "Oslo"}), pc(["Q"], "A"), pc("Q", None))},
        OK_READ,
        {"wrong_type": 3},
    ),
    Case(
        "a number where text is expected", {"a.jsonl": lines(OK, pc("1 + 1", 2))}, OK_READ, {"wrong_type": 1}
    ),
    Case("a number column", {"a.parquet": parquet([pc("1 + 1", 2)])}, [], {"wrong_type": 1}),
    Case(
        "numbers in a table stay as written",
        {"a.csv": b"prompt,completion\n007,1.50\n1e3,+0\n"},
        qa(("007", "1.50"), ("1e3", "+0")),
    ),
    Case(
        "JSON as text is text", {"a.jsonl": lines(pc("Q", '{"city": "Oslo"}'))}, qa(("Q", '{"city": "Oslo"}'))
    ),
    Case(
        "missing keys",
        {"a.jsonl": lines(OK, {"prompt": "Q"}, {"completion": "A"}, {})},
        OK_READ,
        {"missing_field": 3},
    ),
    Case("extra keys", {"a.jsonl": lines(pc("Q", "A", id=7, tags=["x"], text="other"))}, OK_READ),
    Case("a null in a column", {"a.parquet": parquet([OK, pc("Q", None)])}, OK_READ, {"wrong_type": 1}),
    Case(
        "empty fields of a table",
        {"a.csv": b"instruction,input,output\nQ,,A\n,,B\nQ,x,\n\n"},
        OK_READ,
        {"empty_answer": 1, "empty_question": 1},
    ),
    Case(
        "a row with a comma too many, and one too few",
        {"a.csv": b"prompt,completion\nQ,A\nWho, me?,A\nQ\n"},
        OK_READ,
        {"field_count": 2},
    ),
    Case(
        "semicolons and quotes, as spreadsheets of many languages write",
        {"a.csv": b'prompt;completion\n"a;b";"say ""hi"", please"\n'},
        qa(("a;b", 'say "hi", please')),
    ),
    Case(
        "a quote that never ends costs what follows",
        {"a.csv": b'prompt,completion\nQ,A\nQ,"A\nQ,A\n'},
        OK_READ,
        {"unreadable_line": 1},
    ),
    Case(
        "a column name twice",
        {"a.csv": b"prompt,prompt\nQ,A\n"},
        error="ROOT/a.csv:1: a column name is there twice: prompt, prompt",
    ),
]

_EMOJI = "👩‍👩‍👧‍👦 é \u0065\u0301 🇳🇴 \ufeff!"  # a family, e + combining acute, a flag, a mark in the middle
_RTL = "\u202bשלום עולם\u202c مرحبا"
_CODE = "def f(x):\n\tif x < 1 && y:\n        return '\\n'  # ok\n\n\n"
_HTML = "<p>a &amp; b</p><br/><script>if (a < b) {}</script>"

TEXTS = [
    Case(f"{name}, in {file}", {file: content(text)}, qa((text, text)))
    for name, text in (
        ("emoji and combining marks", _EMOJI),
        ("right to left", _RTL),
        ("Chinese", "什么是梯度？　答：导数。"),
    )
    for file, content in (
        ("a.jsonl", lambda text: lines(pc(text, text))),
        ("a.csv", lambda text: f'prompt,completion\n"{text}","{text}"\n'.encode()),
        ("a.parquet", lambda text: parquet([pc(text, text)])),
    )
] + [
    Case("HTML untouched", {"a.jsonl": lines(pc(_HTML, _HTML))}, qa((_HTML, _HTML))),
    Case("code untouched", {"a.jsonl": lines(pc(_CODE, _CODE))}, qa((_CODE, _CODE))),
    Case("code as plain text", {"a.txt": _CODE.encode()}, [[("text", _CODE)]], formats={"a.txt": "text"}),
    Case(
        "half of a surrogate pair",
        {"a.jsonl": OK_LINE + b'{"prompt": "\\ud83d", "completion": "A"}\n'},
        OK_READ,
        {"invalid_text": 1},
    ),
]

_CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}

CONVERSATIONS = [
    Case(
        "answers marked not to be learned",
        {
            "a.jsonl": lines(
                *(
                    {"messages": [spoken("Q")[0], {"role": "assistant", "content": "A", **mark}]}
                    for mark in (
                        {"weight": 0},
                        {"weight": 1},
                        {"weight": None},
                        {"train": False},
                        {"train": True},
                    )
                ),
                {"messages": [{**spoken("Q")[0], "weight": 0}, *spoken("", "A")[1:]]},
            )
        },
        OK_READ * 4,
        {"unlearned_answer": 2},
    ),
    Case(
        "completions judged bad, as unpaired preferences have them",
        {"a.jsonl": lines(pc("Q", "A", label=True), pc("Q", "worse", label=False), pc("Q", "A", label=0.5))},
        OK_READ * 2,
        {"unlearned_answer": 1},
    ),
    Case(
        "nothing but completions judged bad, strict",
        {"a.jsonl": lines(pc("Q", "worse", label=False), OK)},
        OK_READ,
        {"unlearned_answer": 1},
        settings={"strict": True},
    ),
    Case(
        "roles out of order",
        {
            "a.jsonl": lines(
                chat("user", "assistant"),
                chat("assistant", "user", "assistant"),
                chat("user", "user", "assistant"),
                chat("user", "assistant", "assistant"),
                chat("user", "system", "assistant"),
            )
        },
        [said("user", "assistant")],
        {"role_order": 4},
    ),
    Case(
        "turns after the last answer",
        {"a.jsonl": lines(chat("user", "assistant", "user"))},
        [said("user", "assistant")],
    ),
    Case(
        "no answer",
        {"a.jsonl": lines(chat("user", "assistant"), chat("user"))},
        [said("user", "assistant")],
        {"no_answer": 1},
    ),
    Case(
        "tool calls, tool replies, tools on offer",
        {
            "a.jsonl": lines(
                chat("user", "assistant", tools=[]),
                {"messages": [{"role": "user", "content": "Q"}, _CALL]},
                chat("user", "tool", "assistant"),
                chat("user", "assistant", tools=[{"name": "f"}]),
            )
        },
        [said("user", "assistant")],
        {"tool_call": 3},
    ),
    Case(
        "content in parts of text; a picture is none",
        {
            "a.jsonl": lines(
                *(
                    {"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": "A"}]}
                    for parts in (
                        [{"type": "text", "text": "Q"}, {"type": "text", "text": "?"}],
                        [{"type": "image_url", "image_url": {"url": "x"}}],
                    )
                )
            )
        },
        qa(("Q?", "A")),
        {"wrong_type": 1},
    ),
    Case(
        "an unknown role",
        {"a.jsonl": lines(chat("user", "assistant"), chat("user", "critic", "assistant"))},
        [said("user", "assistant")],
        {"unknown_role": 1},
    ),
    Case(
        "the other names of roles, and a system column",
        {
            "a.jsonl": lines(
                {
                    "system": "S",
                    "conversations": [{"from": "Human", "value": "Q"}, {"from": "chatgpt", "value": "A"}],
                }
            )
        },
        [[("system", "S"), *qa(("Q", "A"))[0]]],
        formats={"a.jsonl": "sharegpt"},
    ),
    Case(
        "Alpaca with history",
        {
            "a.json": json.dumps(
                [{"instruction": "Q2", "input": "", "output": "A2", "history": [["Q1", "A1"]]}]
            ).encode()
        },
        [qa(("Q1", "A1"))[0] + qa(("Q2", "A2"))[0]],
        formats={"a.json": "alpaca"},
    ),
    Case(
        "preference pairs of every kind",
        {
            "a.jsonl": lines(
                {"prompt": "Q", "chosen": "good", "rejected": "bad"},
                {"question": "Q", "chosen": "good", "rejected": "bad"},
                {"prompt": "Q", "chosen": spoken("Q", "good"), "rejected": spoken("Q", "bad")},
                {"prompt": spoken("Q"), "chosen": [{"role": "assistant", "content": "good"}], "rejected": []},
                {
                    "conversations": [{"from": "human", "value": "Q"}],
                    "chosen": {"from": "gpt", "value": "good"},
                    "rejected": {},
                },
                {"chosen": "no question", "rejected": "bad"},
            )
        },
        qa(("Q", "good")) * 5,
        {"missing_field": 1},
        formats={"a.jsonl": "preference"},
        notes=("preference pairs are read as their chosen side; the rejected side is not used",),
    ),
    Case(
        "a single conversation as a document",
        {"a.json": json.dumps(chat("user", "assistant"), indent=1).encode()},
        [said("user", "assistant")],
    ),
]
