"""`trueup audit`: exit codes, the JSON document, the example's page, and files that are no claim files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from in_process import Main, refused

ROOT = Path(__file__).parents[2]
EXAMPLES = ("money", "limits", "hardware")
GOOD = """\
title: a test
figures:
  nodes: 3 nodes
  price: $32.77/h
  hours: {value: 14.2 min, source: the article}
claims:
  cost:
    quote: three nodes cost $23.3
    says: $23.3
    from: nodes * price * hours
"""


@pytest.fixture
def claims(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "claims.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_a_file_whose_claims_all_follow_ends_with_code_0(main: Main, claims: Callable[[str], Path]) -> None:
    done = main("audit", claims(GOOD))
    assert done.code == 0, done
    assert "1 claim: 1 follows" in done.out
    assert "gives $23.27" in done.out


def test_a_claim_that_does_not_follow_ends_with_code_1(main: Main, claims: Callable[[str], Path]) -> None:
    done = main("audit", claims(GOOD.replace("says: $23.3", "says: $33.3")))
    assert done.code == 1
    assert "does not follow" in done.out
    assert done.err == ""


def test_a_claim_that_cannot_be_decided_ends_with_code_1(main: Main, claims: Callable[[str], Path]) -> None:
    done = main("audit", claims(GOOD.replace("price: $32.77/h", "price: not given")), "--json")
    assert done.code == 1
    (claim,) = json.loads(done.out)["claims"]
    assert (claim["verdict"], claim["missing"]) == ("cannot be decided", ["price"])


def test_json_has_the_verdict_and_what_it_rests_on(main: Main, claims: Callable[[str], Path]) -> None:
    document = json.loads(main("audit", claims(GOOD), "--json").out)
    (claim,) = document["claims"]
    assert claim["verdict"] == "follows"
    assert claim["recomputed"]["unit"] == "$"
    assert claim["recomputed"]["value"] == pytest.approx(23.2667)
    assert claim["recomputed"]["ci"][0] < claim["recomputed"]["value"] < claim["recomputed"]["ci"][1]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_page_has_what_the_command_prints(main: Main, name: str) -> None:
    done = main("audit", ROOT / "docs" / "claims" / f"{name}.yaml")
    assert done.code == 1
    page = (ROOT / "docs" / "audit-example.md").read_text(encoding="utf-8")
    printed = "\n".join(line.rstrip() for line in done.out.splitlines())
    assert f"```text\n$ trueup audit docs/claims/{name}.yaml\n{printed}\n```" in page


def test_text_of_a_claim_file_is_never_markup(main: Main, claims: Callable[[str], Path]) -> None:
    done = main("audit", claims(GOOD.replace("title: a test", 'title: "[red]x[/nope] \\e[31m"')))
    assert "[red]x[/nope]" in done.out
    assert "\x1b" not in done.out


# --- bad input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["is empty"]),
        ("# nothing\n", ["is empty"]),
        ("just text\n", [":1:", "is a mapping"]),
        ("- a\n- b\n", [":1:", "is a mapping"]),
        ("title: [unclosed\n", ["not valid YAML"]),
        ("title: t\n", ["'claims' is required and missing"]),
        ("title: t\nclaims: {}\n", [":2:", "there are no claims"]),
        ("title: t\nclaims:\n", [":2:", "'claims' is a mapping"]),
        ("title: t\nclaims: 3\n", [":2:", "'claims' is a mapping"]),
        ("title: t\nclaims: [a]\n", [":2:", "'claims' is a list"]),
        ("title: {a: b}\nclaims: {x: {says: 1, from: '1'}}\n", [":1:", "'title' has to be text"]),
        ("claims: {x: {says: 1, from: '1'}}\n", ["'title' is required and missing"]),
        ("title: t\ntitle: u\nclaims: {x: {check: 1 < 2}}\n", [":2:", "'title' is given twice", "line 1"]),
        (GOOD + "  cost: {check: 1 < 2}\n", ["'claims.cost' is given twice"]),
        (GOOD.replace("nodes: 3", "price: 3"), [":4:", "'figures.price' is given twice"]),
        (GOOD.replace("nodes: 3 nodes", "cost: $3"), ["'cost' is both a figure and a claim"]),
        (GOOD.replace("nodes: 3", "my-nodes: 3"), ["'my-nodes' cannot be a name"]),
        (GOOD.replace("nodes: 3", "__class__: 3"), ["'__class__' cannot be a name"]),
        (GOOD.replace("nodes: 3", "lambda: 3"), ["'lambda' cannot be a name"]),
        (GOOD.replace("    from: nodes", "    form: nodes"), [":10:", "unknown key", "did you mean 'from'?"]),
        (GOOD.replace("figures:", "figure:"), [":2:", "unknown key 'figure'; did you mean 'figures'?"]),
        (GOOD.replace("source: the", "sauce: the"), [":5:", "key 'figures.hours.sauce'", "'source'?"]),
        (GOOD.replace("    from: nodes * price * hours\n", ""), [":7:", "a claim has one of"]),
        (GOOD.replace("says: $23.3\n", "check: 1 < 2\n"), [":7:", "a claim has one of"]),
        (GOOD.replace("    says: $23.3\n", ""), [":7:", "needs `says`"]),
        (GOOD.replace("nodes: 3 nodes", "nodes: three"), [":3:", "'figures.nodes'", "is no figure"]),
        (GOOD.replace("nodes: 3 nodes", "nodes: {note: x}"), [":3:", "either a `value` or a `formula`"]),
        (GOOD.replace("nodes: 3 nodes", "nodes: {formula: cost / price}\n  x: {formula: x}"), ["circular"]),
        (GOOD.replace("nodes * price", "node * price"), [":7:", "quantity 'node'", "did you mean nodes?"]),
        (GOOD.replace("nodes * price", "nodes + price"), [":7:", "mixed units"]),
        (GOOD.replace("nodes * price", "price / 0"), [":7:", "division by zero"]),
        (GOOD.replace("14.2 min", "0 min").replace("price * h", "price / h"), [":7:", "hours is '0 min'"]),
        (GOOD.replace("nodes * price", "exp(nodes) * price"), [":7:", "unknown function 'exp'"]),
        (GOOD.replace("nodes * price", "9 ** 9 ** 9 ** 9"), [":7:", "an exponent is a whole number"]),
        (GOOD.replace("3 nodes", "1e99999999"), [":3:", "exponent"]),
        (GOOD.replace("nodes * price", "__import__('os').system('true')"), [":7:", "unknown function"]),
        (GOOD.replace("3 nodes", "!!python/object/apply:os.system ['true']"), [":3:", "is a list"]),
        (GOOD.replace("3 nodes", "!!python/name:os.system x"), [":3:", "YAML tag"]),
        (GOOD.replace("3 nodes", "&a 3").replace("$32.77/h", "*a"), [":4:", "no YAML aliases"]),
        ("? {a: b}\n: c\n", [":1:", "a key is a plain name"]),
        ("{" * 3000, ["nested deeper"]),
        ("title: \x00\n", ["not valid YAML"]),
    ],
)  # fmt: skip
def test_bad_claim_files(main: Main, claims: Callable[[str], Path], text: str, parts: list[str]) -> None:
    refused(main("audit", claims(text)), 2, "claims.yaml", *parts)


def test_no_code_of_a_claim_file_runs(main: Main, claims: Callable[[str], Path], tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    for attack in (
        f"__import__('pathlib').Path('{witness}').touch()",
        f"open('{witness}', 'w')",
        f"[open('{witness}', 'w') for _ in (1,)]",
        f"(lambda: open('{witness}', 'w'))()",
    ):
        refused(main("audit", claims(GOOD.replace("nodes * price", attack))), 2, "claims.yaml")
    assert not witness.exists()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: None, "no such claim file"),
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: path.write_bytes(b"\xff\xfe\x00"), "not UTF-8 text"),
        (lambda path: path.write_bytes(b"#" * (1 << 18 | 1)), "larger than"),
        (lambda path: path.symlink_to(os.devnull), "is empty"),
    ],
)
def test_files_that_cannot_be_read(main: Main, tmp_path: Path, make: Callable[[Path], Any], why: str) -> None:
    path = tmp_path / "claims.yaml"
    make(path)
    refused(main("audit", path), 2, "claims.yaml", why)
