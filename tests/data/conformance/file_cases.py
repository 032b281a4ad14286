"""As cases.py: documents, compression, damage, folders, globs, saved data sets, columns of other names."""

from __future__ import annotations

import gzip
import json
from typing import Any

from .cases import LONG, OK, OK_LINE, OK_READ, Case, chat, lines, pc, qa, said
from .writers import arrow_stream, parquet, zst

READABLE = (
    "Readable: .json, .jsonl, .ndjson, .csv, .tsv, .txt, .parquet, .arrow, .feather; "
    "all but the last three may end in .gz or .zst"
)
KNOWN = (
    "Known: preference: 'chosen' and 'rejected'; messages: 'messages'; sharegpt: 'conversations'; "
    "alpaca: 'instruction' with 'output' or 'response'; prompt-completion: 'prompt' and 'completion'; "
    "text: 'text'. Map other names with data.columns, such as {prompt: question, completion: answer}"
)
LIST_HINT = "; a .json file holds one list of records; one record a line is read too"
FAQ = {"question": "Q", "answer": "A", "prompt": "not this"}
FAQ_COLUMNS = {"prompt": "question", "completion": "answer"}


def document(value: Any, **layout: Any) -> bytes:
    return json.dumps(value, **layout).encode()


DOCUMENTS = [
    Case(
        "an object with one list inside, after other keys",
        {"a.json": document({"meta": {"n": 2, "tags": ["x"]}, "rows": [OK, pc("R", "B")], "end": 1})},
        qa(("Q", "A"), ("R", "B")),
    ),
    Case(
        "an object with two lists of records",
        {"a.json": document({"train": [OK], "test": [OK]})},
        error="ROOT/a.json:1: two lists of records ('train', 'test'); expected one: put each in a file "
        f"(column 57){LIST_HINT}",
    ),
    Case("JSON lines named .json", {"a.json": OK_LINE * 2}, OK_READ * 2),
    Case("a list named .jsonl", {"a.jsonl": document([OK, OK], indent=2)}, OK_READ * 2),
    Case(
        "a document cut short",
        {"a.json": document([OK, OK], indent=0)[:-20]},
        error=f"ROOT/a.json:8: not JSON: Unterminated string starting at (column 1){LIST_HINT}",
    ),
    Case(
        "a comma too many, far into a document",
        {"a.json": document([pc(LONG, "A")] * 2)[:-1] + b",]"},
        error=f"ROOT/a.json:1: not JSON: Expecting value (column 10000071){LIST_HINT}",
    ),
    Case(
        "two documents in one",
        {"a.json": document([OK]) + document([OK])},
        error="ROOT/a.json:1: more text after the end of the document; one record a line is a .jsonl file "
        f"(column 37){LIST_HINT}",
    ),
    Case(
        "a list of no records",
        {"a.json": b"[]"},
        error="ROOT/a.json holds no records; expected one JSON record per line, or a JSON list of records",
    ),
    Case(
        "a list of numbers",
        {"a.json": b"[1, 2]"},
        error=f"ROOT/a.json: no known format; the first rows have no objects but int. {KNOWN}",
    ),
]

DAMAGE = [
    Case("gzip in two members", {"a.jsonl.gz": gzip.compress(OK_LINE) * 2}, OK_READ * 2),
    Case("zstandard in two frames", {"a.jsonl.zst": zst(OK_LINE) * 2}, OK_READ * 2),
    Case("a name in capitals", {"A.JSONL.GZ": gzip.compress(OK_LINE)}, OK_READ),
    Case(
        "gzip cut short",
        {"a.jsonl.gz": gzip.compress(OK_LINE)[:-9]},
        error="ROOT/a.jsonl.gz: the compressed data is damaged or cut short: Compressed file ended before "
        "the end-of-stream marker was reached",
    ),
    *(
        Case(f"{ending} without its ending", {"a.jsonl": content}, error=f"ROOT/a.jsonl: {error}")
        for ending, content, error in (
            (".gz", gzip.compress(OK_LINE), "compressed; end its name in .gz"),
            (".zst", zst(OK_LINE), "compressed; end its name in .zst"),
        )
    ),
    Case(
        "gzip twice",
        {"a.jsonl.gz": gzip.compress(gzip.compress(OK_LINE))},
        error="ROOT/a.jsonl.gz: compressed twice",
    ),
    Case(
        "not gzip at all",
        {"a.jsonl.gz": OK_LINE},
        error="ROOT/a.jsonl.gz: cannot be read: Not a gzipped file (b'{\"'); check data.source",
    ),
    Case(
        "zstandard cut short",
        {"a.jsonl.zst": zst(OK_LINE)[:-3]},
        error="ROOT/a.jsonl.zst: cannot be read: Truncated compressed stream; check data.source",
    ),
    Case(
        "Parquet cut short",
        {"a.parquet": parquet([OK])[:-40]},
        error="ROOT/a.parquet: cannot be read as parquet: Parquet magic bytes not found in footer. Either "
        "the file is corrupted or this is not a parquet file.",
    ),
    Case(
        "an Arrow stream cut short",
        {"a.arrow": arrow_stream([OK])[:-100]},
        error="ROOT/a.arrow: cannot be read as arrow: Expected to read 216 metadata bytes, but only read 156",
    ),
    Case(
        "empty",
        {"a.jsonl": b""},
        error="ROOT/a.jsonl is empty; expected one JSON record per line, or a JSON list of records",
    ),
    Case(
        "a kind that is not read",
        {"a.docx": b"PK"},
        error="data.source 'ROOT/a.docx' is not a kind of file that is read "
        f"({READABLE.removeprefix('Readable: ')})",
    ),
    Case(
        "lines that are no JSON",
        {"a.jsonl": b"Q,A\n"},
        error="ROOT/a.jsonl:1: none of the first 1 lines is JSON: not JSON: Expecting value: "
        "line 1 column 1 (char 0); the line ends: Q,A",
    ),
]

FOLDERS = [
    Case(
        "every file by its own format",
        {
            "b/x.jsonl": lines(chat("user", "assistant")),
            "a.csv": b"instruction,output\nQ,A\n",
            "c.parquet": parquet([pc("R", "B")]),
            "d.txt": b"Once.",
        },
        [*OK_READ, said("user", "assistant"), *qa(("R", "B")), [("text", "Once.")]],
        source=".",
        formats={
            "a.csv": "alpaca",
            "b/x.jsonl": "messages",
            "c.parquet": "prompt-completion",
            "d.txt": "text",
        },
        notes=("plain text is used without a template; all of it carries loss",),
    ),
    Case(
        "hidden files, descriptions, empty files and files without records",
        {
            "a.jsonl": OK_LINE,
            ".git/x.jsonl": OK_LINE,
            ".x.jsonl": OK_LINE,
            "README.md": b"# data",
            "LICENSE": b"CC0",
            "license_questions.jsonl": lines(pc("R", "B")),
            "_SUCCESS": b"",
            "b.jsonl": b"",
            "c.json": b"[]",
        },
        qa(("Q", "A"), ("R", "B")),
        source=".",
        notes=(
            "passed over, being descriptions: LICENSE, README.md",
            "passed over, being empty: _SUCCESS, b.jsonl",
            "passed over, holding no records: c.json",
        ),
    ),
    Case(
        "kinds that are not read",
        {"a.jsonl": OK_LINE, "b.pdf": b"%PDF", "c/d.xlsx": b"PK"},
        error="data.source 'in': b.pdf, c/d.xlsx cannot be read. "
        + READABLE
        + ". Take these files out, or name "
        "the others with a glob such as ROOT/*.jsonl",
        source=".",
    ),
    Case(
        "formats that are not known",
        {"a.jsonl": OK_LINE, "b.jsonl": lines({"q": "Q"}), "c.csv": b"x\n1\n"},
        error="data.source 'in': 2 of 3 files cannot be used:\n"
        f"  ROOT/b.jsonl: no known format; the first rows have keys 'q'. {KNOWN}\n"
        f"  ROOT/c.csv: no known format; the first rows have keys 'x'. {KNOWN}",
        source=".",
    ),
    Case(
        "a glob",
        {"a.jsonl": OK_LINE, "b.pdf": b"", "s/c.jsonl": lines(pc("R", "B"))},
        qa(("Q", "A"), ("R", "B")),
        source="**/*.jsonl",
    ),
    Case(
        "a glob of nothing",
        {"a.jsonl": OK_LINE},
        error="data.source 'ROOT/*.csv' matches no file (looked from CWD)",
        source="*.csv",
    ),
    Case(
        "a saved data set with a leftover",
        {
            "dataset_info.json": b"{}",
            "state.json": document({"_data_files": [{"filename": "data-0.arrow"}]}),
            "data-0.arrow": arrow_stream([OK]),
            "cache-1.arrow": arrow_stream([pc("not", "this")]),
        },
        OK_READ,
        source=".",
        formats={"data-0.arrow": "prompt-completion"},
    ),
    Case(
        "a saved data set of two splits",
        {"dataset_dict.json": b'{"splits": ["train", "test"]}', "train/state.json": b"{}"},
        error="ROOT holds the splits train, test; name one: data.source: ROOT/train",
        source=".",
    ),
]

COLUMNS = [
    Case(
        "question and answer, mapped",
        {"a.csv": b"question,answer\nQ,A\n"},
        OK_READ,
        settings={"columns": FAQ_COLUMNS},
    ),
    Case(
        "a mapped key is never read from its own name",
        {"a.jsonl": lines(FAQ, {"prompt": "x", "answer": "A"})},
        OK_READ,
        {"missing_field": 1},
        settings={"columns": FAQ_COLUMNS},
    ),
    Case(
        "the map decides, whatever else is there",
        {"a.jsonl": lines({**FAQ, **chat("user", "assistant")})},
        OK_READ,
        settings={"columns": FAQ_COLUMNS},
        formats={"a.jsonl": "prompt-completion"},
    ),
    Case(
        "a system column, absent in one row and blank in another",
        {"a.jsonl": lines({**FAQ, "role": "S"}, FAQ, {**FAQ, "role": " "})},
        [[("system", "S"), *OK_READ[0]], *OK_READ, *OK_READ],
        settings={"columns": {**FAQ_COLUMNS, "system": "role"}},
    ),
    Case(
        "messages and text under other names",
        {"a.jsonl": lines({"dialog": chat("user", "assistant")["messages"]})},
        [said("user", "assistant")],
        settings={"columns": {"messages": "dialog"}},
    ),
    Case(
        "text under another name",
        {"a.csv": b"id,body\n1,Once.\n"},
        [[("text", "Once.")]],
        settings={"columns": {"text": "body"}},
    ),
    Case(
        "the better answer under another name",
        {"a.jsonl": lines({"prompt": "Q", "best": "A"})},
        OK_READ,
        settings={"columns": {"prompt": "prompt", "chosen": "best"}},
    ),
    Case(
        "columns that are not there",
        {"a.csv": b"frage,antwort\nQ,A\n"},
        error="ROOT/a.csv: none of the first 1 rows has the columns of data.columns (prompt: question, "
        "completion: answer); the first rows have keys 'frage', 'antwort'",
        settings={"columns": FAQ_COLUMNS},
    ),
    Case(
        "question and answer without a map",
        {"a.csv": b"question,answer\nQ,A\n"},
        error=f"ROOT/a.csv: no known format; the first rows have keys 'question', 'answer'. {KNOWN}",
    ),
]
