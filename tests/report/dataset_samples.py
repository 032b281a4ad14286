"""A made-up report of a prepared data set and examples, as `prepare --json --show` prints them."""

from __future__ import annotations

from typing import Any

TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}"


def make_report(**changes: Any) -> dict[str, Any]:
    lengths = [[start, start + 16, max(0, 90 - (start - 48) ** 2 // 40)] for start in range(0, 160, 16)]
    report: dict[str, Any] = {
        "dataset": "baf2918102c3a80e33a99f7165bd447c",
        "source": "faq.jsonl",
        "folder": "/home/me/.trueup/data/baf2918102c3a80e33a99f7165bd447c",
        "records": 3072,
        "records_read": 3115,
        "splits": {"train": 2764, "validation": 154, "test": 154},
        "dropped": {"empty_answer": 12, "too_long": 31},
        "changed": {"answer_whitespace_trimmed": 7},
        "first": {
            "empty_answer": [{"where": "faq.jsonl:9", "what": "the answer is empty"}],
            "too_long": [{"where": "faq.jsonl:41", "what": "2,981 tokens, the limit is 512: Why?"}],
        },
        "redacted": {},
        "tokens": {"min": 5, "p50": 49, "p90": 101, "p99": 140, "max": 151, "total": 151_204},
        "supervised_tokens": 92_234,
        "length_histogram": [part for part in lengths if part[2]],
        "format": {"name": "messages", "evidence": "50 of the first 50 rows have messages"},
        "template": {"kind": "tokenizer", "sha256": "ab" * 32},
        "pad": {"id": 0, "token": "<pad>", "reason": "the tokenizer's own pad token"},
        "end_ids": [2],
        "settings": {"max_length": 512, "overlong": "drop", "limit": None, "split": {"validation": 0.05}},
        "messages": [],
        "cache_hit": False,
    }
    return {**report, **changes}


def more_facts() -> dict[str, Any]:
    """What a report may have beside the rest."""
    cluster = {
        "size": 14,
        "members": [{"where": f"faq.jsonl:{n}", "what": "How do I log in?"} for n in (3, 8)],
    }
    summary = {"min": 2, "p50": 20, "p90": 51, "p99": 70, "max": 88, "total": 75_000}
    return {
        "examples": 3_090,
        "redacted": {"email": 3, "phone": 12},
        "duplicates": {
            "near_threshold": 0.8,
            "records_in_no_cluster": 3001,
            "dropped": 9,
            "exact": {"clusters": 4, "records": 13, "sizes": {"2": 3, "7": 1}, "largest": []},
            "near": {"clusters": 11, "records": 58, "sizes": {"2": 8}, "largest": [cluster]},
        },
        "scripts": {"Latin": 2900, "Han": 172},
        "tokens_by_part": {"prompt": summary, "answer": {**summary, "max": 63}},
        "padding": {"pack": 0.0123, "bucket": 0.2, "tokens_per_microbatch": 512, "examples": 2764},
    }


def make_example(question: str, answer: str) -> dict[str, Any]:
    """Tokens of one character; the answer and its end carry loss."""
    tokens = [{"id": 1, "text": "<|user|>", "loss": False, "special": True}]
    tokens += [{"id": ord(char), "text": char, "loss": False, "special": False} for char in f"\n{question}\n"]
    tokens += [{"id": ord(char), "text": char, "loss": True, "special": False} for char in answer]
    tokens += [{"id": 2, "text": "</s>", "loss": True, "special": True}]
    tokens += [{"id": 10, "text": "\n", "loss": False, "special": False}]
    return {"text": "".join(str(token["text"]) for token in tokens), "tokens": tokens}
