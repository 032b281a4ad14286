"""Redaction: what is caught, what survives, and the properties that hold for any text."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from redact_examples import NEGATIVES, POSITIVES, RANDOM, card, cn_id, fours, iban

from trueup.data import redact, stdlib_docs
from trueup.data.redact import Kind, Redacted, Redactor
from trueup.data.redact_numbers import is_card, is_cn_id, is_iban, luhn
from trueup.data.redact_secrets import CREDENTIALS, public_prefix

SHARED = Path(__file__).parents[3] / "shared" / "data"
ALL = Redactor()

# Pieces that finders look for, and what stands between them: any text made of these is a hard one.
PIECES = st.sampled_from(
    [value for _, _, value in POSITIVES]
    + [text for text in NEGATIVES if len(text) < 80]
    + [kind.placeholder for kind in Kind]
    + [
        "@",
        ".",
        "-",
        "+",
        ":",
        "::",
        "//",
        "://",
        "(",
        ")",
        "=",
        " ",
        "\n",
        '"',
        ",",
        "。",
        "电话：",
        "phone ",
        "1",
        "a",
    ]
    + [
        "password=",
        "password: '",
        "86",
        "+86 ",
        "ext. 5",
        "021 6543 2109 ",
        "5678@x.com",
        "ip ",
        "/24",
        ":80",
        "x",
    ]
)
HARD_TEXTS = st.lists(PIECES, max_size=12).map("".join)


def rebuilt(text: str, result: Redacted) -> str:
    """The output, made again from the spans alone."""
    pieces, at = [], 0
    for found in result.found:
        pieces += [text[at : found.start], found.kind.placeholder]
        at = found.end
    return "".join([*pieces, text[at:]])


def test_the_tables_are_as_large_as_promised() -> None:
    assert len(POSITIVES) >= 60
    assert len(NEGATIVES) >= 80
    assert {kind for kind, _, _ in POSITIVES} == set(Kind)


@pytest.mark.parametrize(("kind", "text", "value"), POSITIVES)
def test_found_and_replaced(kind: str, text: str, value: str) -> None:
    result = ALL.redact(text)
    assert [(found.kind, text[found.start : found.end]) for found in result.found] == [(kind, value)]
    assert result.text == text.replace(value, f"[{kind.upper()}]")


@pytest.mark.parametrize("text", NEGATIVES)
def test_survives(text: str) -> None:
    assert ALL.redact(text) == Redacted(text, ())


@pytest.mark.parametrize(("kind", "text", "value"), POSITIVES)
def test_what_is_shown_is_no_use_to_others(kind: str, text: str, value: str) -> None:
    (found,) = ALL.redact(text).found
    assert value not in found.shown
    shown = (
        "" if kind == "secret" else found.shown
    )  # a credential shows its public prefix and its length alone
    assert not any(value[at : at + 5] in shown for at in range(len(value) - 4))
    if kind == "secret":
        assert found.shown == f"{public_prefix(value)}… ({len(value)} characters)"
        assert public_prefix(value) in {"", "eyJ", "-----BEGIN", *(prefix for prefix, _ in CREDENTIALS)}


@pytest.mark.parametrize(("kind", "text", "value"), POSITIVES)
def test_only_the_chosen_kinds(kind: str, text: str, value: str) -> None:
    others = Redactor(frozenset(Kind) - {Kind(kind)})
    assert kind not in {found.kind for found in others.redact(text).found}
    assert [found.kind for found in Redactor(frozenset({Kind(kind)})).redact(text).found] == [kind]
    assert Redactor(frozenset()).redact(text) == Redacted(text, ())


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="passport"):
        Redactor(frozenset({"passport"}))  # type: ignore[arg-type]


def test_several_in_one_text() -> None:
    text = (
        f"Mail a.b@mail.com or 13812345678; ID {cn_id('11010519491231002')}, card {card('411111111111111')}."
    )
    result = ALL.redact(text)
    assert result.text == "Mail [EMAIL] or [PHONE]; ID [CN_ID], card [PAYMENT_CARD]."
    assert [found.kind for found in result.found] == ["email", "phone", "cn_id", "payment_card"]


def test_the_longer_span_wins_then_the_more_specific_kind() -> None:
    assert ALL.redact("write 13812345678@qq.com").text == "write [EMAIL]"
    card_and_id = next(
        number
        for number in (cn_id(f"62010019800101{serial:03d}") for serial in range(1000))
        if number.isdigit() and is_card(number)  # UnionPay begins with 62, so does Gansu
    )
    assert [found.kind for found in ALL.redact(card_and_id).found] == ["cn_id"]
    assert [found.kind for found in Redactor(frozenset({Kind.PAYMENT_CARD})).redact(card_and_id).found] == [
        "payment_card"
    ]


def test_what_a_first_round_uncovers_is_found_in_the_second() -> None:
    """The last group of digits belongs to the address; without it the rest is a whole number."""
    text = "phone 021 6543 2109 5678@qq.com"
    result = ALL.redact(text)
    assert result.text == "phone [PHONE] [EMAIL]"
    assert rebuilt(text, result) == result.text


@given(HARD_TEXTS)
@settings(max_examples=400, deadline=None)
@example("phone 021 6543 2109 5678@x.com")
@example("password=aB3$eF7&[EMAIL]x@y.com")
@example("a@b.com13812345678@c.com")
def test_twice_is_once_and_spans_are_of_the_text_given(text: str) -> None:
    result = ALL.redact(text)
    assert ALL.redact(result.text) == Redacted(result.text, ())
    assert rebuilt(text, result) == result.text
    assert all(0 <= found.start < found.end <= len(text) for found in result.found)
    assert all(a.end <= b.start for a, b in pairwise(result.found))


@given(st.text(max_size=300))
@settings(max_examples=300, deadline=None)
def test_any_text_is_handled(text: str) -> None:
    result = ALL.redact(text)
    assert rebuilt(text, result) == result.text
    assert ALL.redact(result.text) == Redacted(result.text, ())


@given(st.text("0123456789", min_size=17, max_size=17), st.integers(1, 9))
def test_a_wrong_check_digit_is_no_identity_number(digits: str, off: int) -> None:
    right = cn_id(f"110105{1950 + int(digits[6:8]) % 70}0{1 + int(digits[8]) % 9}1{digits[9]}{digits[14:]}")
    assert is_cn_id(right)
    wrong = right[:17] + "0123456789X"[("0123456789X".index(right[17]) + off) % 11]
    assert not is_cn_id(wrong)
    assert ALL.redact(f"身份证{right}。").text == "身份证[CN_ID]。"


@given(st.text("0123456789", min_size=14, max_size=14), st.integers(1, 9))
def test_luhn_catches_every_wrong_digit(digits: str, off: int) -> None:
    right = card("4" + digits)
    assert luhn(right)
    assert not luhn(right[:-1] + str((int(right[-1]) + off) % 10))
    assert not luhn(right[:5] + str((int(right[5]) + off) % 10) + right[6:])


@given(st.text("0123456789", min_size=18, max_size=18), st.integers(1, 9))
def test_modulo_97_catches_every_wrong_digit(account: str, off: int) -> None:
    right = iban("DE", account)
    assert is_iban(right)
    wrong = right[:9] + str((int(right[9]) + off) % 10) + right[10:]
    assert not is_iban(wrong)
    assert ALL.redact(f"to {fours(right)} today").text == "to [IBAN] today"
    assert ALL.redact(f"to {wrong} today").text == f"to {wrong} today"


@given(st.sampled_from("3456789"), st.text("0123456789", min_size=9, max_size=9))
def test_chinese_mobile_numbers_stand_alone_or_not_at_all(second: str, rest: str) -> None:
    number = "1" + second + rest
    found = ALL.redact(f"手机号{number}，").found
    unused = number[:3] in {"142", "143", "154", "160", "161", "163", "164", "168", "169", "179", "194"}
    assert bool(found) == (not number.endswith("000000")) or unused
    for joined in (f"x{number}", f"{number}0", f"0.{number}", f"{number}.5", f"{number}ms"):
        assert ALL.redact(joined).text == joined


# Each is repeated to 300,000 characters: a finder that backtracked, or looked far at every character, would
# need ten minutes and more.
ADVERSARIAL = [
    "a", "@", "a@", "a@b.", "a.", "1", "138 ", "1-", "+1 ", "+", "(2", ".1", "12.34.", "f:", "::", "4111 ",
    "AB12", "AB12 ABCD ", "DE89 3704 ", "eyJ", "eyJaaaaaaaaa.", "sk-", "ghp_", "password=", 'password="aB3$',
    "-----BEGIN PRIVATE KEY-----\n", "-----BEGIN RSA PRIVATE KEY-----" + "A" * 50, "://a:", "://aaaaaaaa:bbbbb1",
    "tel (0", "phone 12 ", " ", "\n", "(010)", "\\n", "a-a.",
    "İpassword=", "=1380013", "glpat-", "api_key",
]  # fmt: skip


@pytest.mark.parametrize("piece", ADVERSARIAL)
def test_hostile_text_ends(piece: str) -> None:
    text = (piece * (300_000 // len(piece) + 1))[:300_000]
    assert rebuilt(text, result := ALL.redact(text)) == result.text


def test_passes_do_not_grow_with_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finders are asked twice of a text with finds, once of one without, however long it is."""
    calls: Counter[int] = Counter()

    finder = redact.FINDERS[Kind.EMAIL]

    def counted(text: str) -> Iterator[tuple[int, int]]:
        calls[size] += 1
        return finder(text)

    monkeypatch.setitem(redact.FINDERS, Kind.EMAIL, counted)
    redactor = Redactor()
    for size in (10, 100, 1000):
        result = redactor.redact("a.b@mail.com, 13812345678 and 77.88.99.100; " * size)
        assert len(result.found) == 3 * size
    size = 1
    redactor.redact("nothing here")
    assert calls == {10: 2, 100: 2, 1000: 2, 1: 1}


# What is in the standard library's docstrings and is what it looks like: addresses of authors and of lists.
GENUINE = {
    "mal@lemburg.com",
    "gward@python.net",
    "optik-users@lists.sourceforge.net",
    "sendmail-bugs@sendmail.org",
    "lkcl@samba.org",
    "gh@ghaering.de",
}


def touched(name: str, texts: dict[str, list[str]]) -> dict[str, list[str]]:
    """By record: what was replaced in it. Each is printed (pytest -rP shows it)."""
    found = {
        where: [text[f.start : f.end] for text in turns for f in ALL.redact(text).found]
        for where, turns in texts.items()
    }
    changed = {where: values for where, values in found.items() if values}
    print(f"{name}: {len(changed)} of {len(texts)} records touched")
    for where, values in changed.items():
        print(f"  {where}: {', '.join(values)}")
    return changed


def test_no_more_than_one_in_a_thousand_of_the_built_in_records_is_touched_wrongly() -> None:
    texts = {record.origin: [turn.content for turn in record.turns] for record in stdlib_docs.records()}
    changed = touched("stdlib-docs", texts)
    wrongly = {where for where, values in changed.items() if not GENUINE.issuperset(values)}
    rate = 1000 * len(wrongly) / len(texts)
    print(f"  rightly {len(changed) - len(wrongly)}, wrongly {rate:.2f} in 1,000: {wrongly}")
    assert len(wrongly) <= len(texts) / 1000, wrongly
    assert len(changed) <= 3 * len(texts) / 1000, changed
    assert all("@" in value for values in changed.values() for value in values)


@pytest.mark.parametrize("name", ["gsm8k_train_2000", "mmlu_sample", "hellaswag_sample"])
def test_nothing_is_touched_in_sums_and_school_questions(name: str) -> None:
    path = SHARED / f"{name}.jsonl"
    if not path.exists():
        pytest.skip(f"../shared/data/{path.name} is not beside the repository")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    texts = {
        f"{name}:{at}": [
            s for v in row.values() for s in (v if isinstance(v, list) else [v]) if isinstance(s, str)
        ]
        for at, row in enumerate(rows, 1)
    }
    assert len(texts) >= 200
    assert touched(name, texts) == {}


def test_private_keys_end_where_they_end() -> None:
    body = "\n".join((RANDOM * 2)[at : at + 64] for at in range(3))
    cut_off = f"-----BEGIN PRIVATE KEY-----\n{body}\n"
    assert ALL.redact(cut_off + "and then prose").text == "[SECRET]\nand then prose"
    in_json = json.dumps({"key": cut_off + "ab==\n-----END PRIVATE KEY-----\n"})
    assert ALL.redact(in_json).text == '{"key": "[SECRET]\\n"}'
    encrypted = cut_off.replace(
        "KEY-----\n", "KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0F\n\n"
    )
    assert ALL.redact(encrypted + "-----END PRIVATE KEY-----").text == "[SECRET]"
