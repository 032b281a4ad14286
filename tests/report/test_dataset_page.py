"""The page of a data set and the examples in the terminal: all of it there, nothing of the data in effect."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from dataset_samples import TEMPLATE, make_example, make_report, more_facts
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from trueup.report.dataset import MOST_TOKENS, render
from trueup.report.dataset_text import prepare_text
from trueup.report.examples import ExamplesText, example_html, visible

HOSTILE = (
    "</style></title><script>alert(1)</script><img src=x onerror=alert(2)>\"'{{7*7}} [/red] & \x1b[31m\u202e"
)
MOST_BYTES = 500_000


class Tags(HTMLParser):
    """Elements and attributes that a browser would see, and the text inside `mark`."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.handlers: list[str] = []
        self.text: list[str] = []
        self.marked: list[str] = []
        self._in_mark, self._in_style = 0, False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on") or name == "src"]
        self._in_mark += tag == "mark"
        self._in_style = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self._in_mark -= tag == "mark"
        self._in_style = False

    def words(self) -> str:
        return " ".join(" ".join(self.text).split())

    def handle_data(self, data: str) -> None:
        if not self._in_style:
            self.text.append(data)
        if self._in_mark:
            self.marked.append(data)


def terminal(examples: list[dict[str, Any]], width: int = 100, **options: Any) -> str:
    console = Console(file=io.StringIO(), width=width, **options)
    console.print(ExamplesText(examples))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


def test_the_page_has_everything_the_report_has() -> None:
    page = render(make_report(), [make_example("Why?", "Because.")], template=TEMPLATE)
    text = Tags(page).words()
    for part in (
        *("faq.jsonl", "baf2918102c3a80e33a99f7165bd447c", "50 of the first 50 rows have messages"),
        *("3,072", "3,072 records, 151,204 tokens", "3,115 records", "43 dropped, 7 changed"),
        *("61.0 % of the tokens", "92,234 carry loss", "train 2,764 90.0 %", "validation 154", "test 154"),
        *("median 49", "longest 151", "Length of records"),
        *("too long 31 1.0 %", "faq.jsonl:41 2,981 tokens, the limit is 512: Why?", "empty answer 12"),
        *("answer whitespace trimmed 7", "Example 1 17 tokens, 9 learned"),
        *("<pad>", "the tokenizer's own pad token", "{% for m in messages %}", "data.max_length 512"),
    ):
        assert part in text, part
    assert "data.limit" not in text  # nothing is set there
    assert text.index("too long") < text.index("empty answer")  # most frequent first
    assert "<svg" in page
    assert "var(--accent)" in page


def test_what_the_report_does_not_have_is_left_out() -> None:
    report = make_report(dropped={}, changed={}, first={}, length_histogram=[])
    for key in ("supervised_tokens", "records_read", "format", "pad", "end_ids", "settings", "messages"):
        del report[key]
    text = Tags(render(report)).words()
    for absent in (
        "Dropped and changed",
        "What the model sees",
        "learned",
        "padding",
        "Settings",
        "template",
    ):
        assert absent not in text.replace("the chat template included", "").replace(
            "template included", ""
        ), absent
    assert "3,072" in text
    for title in ("Personal data", "Duplicates", "Scripts", "Padding, by", "clusters"):
        assert title not in text


def test_what_else_is_known_is_shown() -> None:
    text = Tags(render(make_report(**more_facts()))).words()
    for part in (
        *("3,072 records in 3,090 examples, 151,204 tokens", "Personal data found", "phone 12"),
        *("Duplicates", "near-copies share at least 80.0 % of their pairs of words"),
        *("equal records 13 in 4 clusters", "near-copies 58 in 11 clusters", "dropped as copies 9"),
        *("faq.jsonl:3 How do I log in?", "and 12 more", "Scripts", "Latin 2,900 (94.4 %)"),
        *("question, template", "longest 151 88 63", "median 49 20 20"),
        *("Padding, by strategy", "pack 1.2 %", "bucket 20.0 %", "in micro-batches of 512 tokens"),
    ):
        assert part in text, part
    ignoring = make_report(duplicates={"near_threshold": None, "exact": {"clusters": 0, "records": 0}})
    text = Tags(render(ignoring)).words()
    assert "near-copies were not looked for" in text
    assert "equal records none" in text


def test_the_learned_tokens_are_marked_and_no_others() -> None:
    tags = Tags(render(make_report(), [make_example("Why?", "Because."), make_example("And?", "So.")]))
    assert "".join(tags.marked) == "MarkedBecause.</s>So.</s>"


def test_nothing_from_data_is_in_effect() -> None:
    report = make_report(
        source=HOSTILE,
        dropped={HOSTILE: 3},
        first={HOSTILE: [{"where": HOSTILE, "what": HOSTILE}]},
        redacted={HOSTILE: 1},
        splits={HOSTILE: 3072},
        messages=[HOSTILE],
        format={"name": HOSTILE, "evidence": HOSTILE},
        pad={"id": 0, "token": HOSTILE, "reason": HOSTILE},
        settings={HOSTILE: HOSTILE},
    )
    page = render(report, [make_example(HOSTILE, HOSTILE)], template=HOSTILE)
    tags = Tags(page)
    assert not tags.seen & {"script", "img", "iframe", "object", "form", "base"}
    assert tags.handlers == []
    assert not set(page) & set("\x1b\u202e")
    assert "49" not in "".join(tags.text).split("{{7*7}}")[1][:6]
    assert "".join(tags.text).count("alert(1)") >= 10
    assert re.search(r"https?://(?!www\.w3\.org)", page) is None


def test_the_page_stays_small_whatever_the_data() -> None:
    long = [make_example("q" * 9000, "\"<>&'" * 3000)] * 40
    report = make_report(
        first={
            f"reason_{n}": [{"where": f"file:{k}", "what": "w" * 160} for k in range(5)] for n in range(30)
        },
        dropped={f"reason_{n}": 5 for n in range(30)},
    )
    page = render(report, long, template="{{ x }}\n" * 20_000)
    assert len(page.encode()) < MOST_BYTES
    assert f"and {len(long[0]['tokens']) - MOST_TOKENS // 40:,} more tokens" in page
    assert "more characters" in page


def test_the_terminal_has_a_line_on_each_of_them() -> None:
    console = Console(file=io.StringIO(), width=120)
    console.print(prepare_text(make_report(**more_facts())))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for line in (
        "learned: 92,234 tokens, 61.0 % of all",
        "tokens by part: question and template p50 20 max 88 · answer p50 20 max 63",
        "copies: 13 equal records in 4 clusters · 58 near-copies in 11 clusters",
        "scripts: Latin 2,900 · Han 172",
        "padding it would pay: pack 1.2 % · bucket 20.0 %",
        "redacted 15",
    ):
        assert f"\n{line}" in text, line


@pytest.mark.parametrize(
    ("threshold", "said"), [(0.8, "no near-copies"), (None, "near-copies not looked for")]
)
def test_the_terminal_says_that_there_are_no_copies(threshold: float | None, said: str) -> None:
    none = {"clusters": 0, "records": 0, "sizes": {}, "largest": []}
    duplicates = {
        "near_threshold": threshold,
        "records_in_no_cluster": 9,
        "dropped": 0,
        "exact": none,
        "near": none,
    }
    console = Console(file=io.StringIO(), width=120)
    console.print(prepare_text(make_report(duplicates=duplicates)))
    assert f"\ncopies: no equal records · {said}\n" in console.file.getvalue()  # type: ignore[attr-defined]


def test_every_record_that_redaction_touched_is_shown() -> None:
    rows = [{"where": f"faq.jsonl:{n}", "what": f"j…@….com: Write to [EMAIL] {n}"} for n in range(40)]
    report = make_report(changed={"personal_data_replaced": 40}, first={"personal_data_replaced": rows})
    page = render(report)
    assert all(f"faq.jsonl:{n}<" in page for n in range(40))
    assert "<summary>and 35 more</summary>" in page
    console = Console(file=io.StringIO(), width=120)
    console.print(prepare_text(report))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.count("[EMAIL]") == 5
    assert "\n    and 35 more, in the page (-o) and in --json\n" in text


def test_a_terminal_without_colours_gets_marks() -> None:
    text = terminal([make_example("Why?", "Because\nso.")])
    lines = text.splitlines()
    assert "between « and » is learned" in lines[1]
    assert lines[3] == "example 1 · 20 tokens, 12 learned"
    assert lines[4:] == ["<|user|>↵", "Why?↵", "«Because↵", "so.</s>»↵"]


def test_a_terminal_with_colours_gets_colours() -> None:
    text = terminal([make_example("Why?", "Because.")], force_terminal=True, color_system="standard")
    assert "\x1b[1;32mBecause.\x1b[0m" in text
    assert "\x1b[2mWhy?↵\x1b[0m" in text
    assert "«" not in text
    without = terminal(
        [make_example("Why?", "Because.")], force_terminal=True, color_system="standard", no_color=True
    )
    assert "«Because." in re.sub(r"\x1b\[[\d;]*m", "", without)


def test_no_examples_is_said() -> None:
    assert "no training example to show" in terminal([])


def test_what_is_hidden_is_seen_and_rich_markup_is_text() -> None:
    text = terminal(
        [make_example("[red]x[/red] \x1b[31m\a\x7f\x9b\u202e\u200b\ufeff\t\r[/nope]", "👩\u200d👧 ok")]
    )
    assert "[red]x[/red] ␛[31m␇␡⟨U+009B⟩⟨U+202E⟩⟨U+200B⟩⟨U+FEFF⟩⇥␍[/nope]" in text
    assert "👩\u200d👧 ok" in text


@given(st.text(st.characters(codec="utf-8")))
def test_visible_text_has_no_effect_and_loses_nothing(text: str) -> None:
    shown = visible(text)
    assert all(line.isprintable() or {*line} & {"\u200c", "\u200d", *_SPACES} for line in shown.split("\n"))
    assert shown.count("\n") == text.count("\n")
    assert len(shown) >= len(text)


_SPACES = {chr(code) for code in range(0x3001) if chr(code).isspace()}


@given(st.lists(st.tuples(st.text(max_size=3), st.booleans(), st.booleans()), max_size=30))
def test_example_html_is_one_i_a_token_and_balanced(parts: list[tuple[str, bool, bool]]) -> None:
    tokens = [{"id": n, "text": t, "loss": loss, "special": s} for n, (t, loss, s) in enumerate(parts)]
    made = example_html({"tokens": tokens}, 1000)
    assert made.count("<i ") == made.count("</i>") == len(tokens)
    assert made.count("<mark>") == made.count("</mark>")
    assert "".join(Tags(made).text) == visible("".join(t for t, _, _ in parts))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_report_without_a_source_has_its_digest_for_a_title(count: int) -> None:
    report = make_report()
    del report["source"]
    page = render(report, [make_example("Why?", "So.")] * count)
    assert "<h1>baf2918102c3a80e33a99f7165bd447c</h1>" in page
    assert page.count('<figure class="example">') == count
