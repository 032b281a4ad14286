"""Finder of credentials: keys with a published shape, tokens, private keys, and literal passwords. Spans are
[start, end) in the text; of `password = "..."` only the value.

A search starts from a literal that such a credential must contain, so that a text without it costs one pass
of str.find each."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections import Counter
from collections.abc import Iterator

from .redact_context import before, occurrences

# The fixed beginning, then the rest at its published length. (?!...) at the end: no longer word.
CREDENTIALS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (prefix, re.compile(rest + r"(?![0-9A-Za-z_])"))
    for prefix, rest in (
        ("AKIA", r"[0-9A-Z]{16}"),  # AWS access key id
        ("ASIA", r"[0-9A-Z]{16}"),  # the same, temporary
        ("ghp_", r"[0-9A-Za-z]{36,251}"),  # GitHub
        ("gho_", r"[0-9A-Za-z]{36,251}"),
        ("ghu_", r"[0-9A-Za-z]{36,251}"),
        ("ghs_", r"[0-9A-Za-z]{36,251}"),
        ("ghr_", r"[0-9A-Za-z]{36,251}"),
        ("github_pat_", r"[0-9A-Za-z]{22}_[0-9A-Za-z]{59}"),
        ("glpat-", r"[0-9A-Za-z_-]{20,64}(?:\.[0-9a-z]{2}\.[0-9a-z]{7,9})?"),  # GitLab
        ("xoxb-", r"[0-9A-Za-z-]{20,120}"),  # Slack
        ("xoxp-", r"[0-9A-Za-z-]{20,120}"),
        ("xoxa-", r"[0-9A-Za-z-]{20,120}"),
        ("xoxr-", r"[0-9A-Za-z-]{20,120}"),
        ("xoxs-", r"[0-9A-Za-z-]{20,120}"),
        ("xapp-", r"[0-9A-Za-z-]{40,160}"),
        ("https://hooks.slack.com/services/", r"T[0-9A-Z]{8,12}/B[0-9A-Z]{8,12}/[0-9A-Za-z]{24}"),
        ("sk-ant-", r"[a-z0-9]{3,8}-[0-9A-Za-z_-]{32,120}"),  # Anthropic
        ("sk-proj-", r"[0-9A-Za-z_-]{32,200}"),  # OpenAI
        ("sk-svcacct-", r"[0-9A-Za-z_-]{32,200}"),
        ("sk-", r"[0-9A-Za-z]{32,64}"),
        ("hf_", r"[0-9A-Za-z]{34,40}"),  # Hugging Face
        ("sk_live_", r"[0-9A-Za-z]{16,128}"),  # Stripe
        ("sk_test_", r"[0-9A-Za-z]{16,128}"),
        ("rk_live_", r"[0-9A-Za-z]{16,128}"),
        ("rk_test_", r"[0-9A-Za-z]{16,128}"),
        ("whsec_", r"[0-9A-Za-z+/]{24,64}"),
        ("AIza", r"[0-9A-Za-z_-]{35}"),  # Google
        ("GOCSPX-", r"[0-9A-Za-z_-]{28}"),
        ("npm_", r"[0-9A-Za-z]{36}"),
        ("pypi-AgE", r"[0-9A-Za-z_-]{80,250}"),
    )
)
_PREFIXES = sorted((prefix for prefix, _ in CREDENTIALS), key=len, reverse=True)
_WORD_BEFORE = re.compile(r"[0-9A-Za-z_]")
_JWT = re.compile(
    r"(?<![0-9A-Za-z_-])(eyJ[0-9A-Za-z_-]{8,2000})\.[0-9A-Za-z_-]{8,8000}\.[0-9A-Za-z_-]{16,2000}(?![0-9A-Za-z_])"
)
# Repeated groups are not possessive: before Python 3.11.5 one that fails halfway keeps what it had taken.
_GAP = r"(?:\s|\\[nr])*"  # a line's end, also as it stands inside a JSON string
_NAME = r"(?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----"
_PRIVATE_KEY = re.compile(
    rf"-----BEGIN {_NAME}"
    rf"(?:{_GAP}[A-Za-z-]{{2,20}}: [^\n]{{1,200}}\n){{0,4}}"  # Proc-Type: 4,ENCRYPTED
    rf"((?:{_GAP}[0-9A-Za-z+/=]{{40,}}+)*)"
    rf"(?:(?:{_GAP}[0-9A-Za-z+/=]{{1,80}}+){{0,3}}{_GAP}-----END {_NAME})?"
)
_KEY_BODY = 64  # characters at least: fewer is a placeholder


def secrets(text: str) -> Iterator[tuple[int, int]]:
    for prefix, rest in CREDENTIALS:
        if prefix in text:
            yield from _with_prefix(text, prefix, rest)
    if "eyJ" in text:
        yield from _tokens(text)
    if "PRIVATE KEY" in text:
        for match in _PRIVATE_KEY.finditer(text):
            if len(re.sub(r"\s|\\[nr]", "", match[1])) >= _KEY_BODY:
                yield match.span()
    yield from _assigned(text)
    if "://" in text and "@" in text:
        yield from _in_urls(text)


def public_prefix(value: str) -> str:
    """The part of a credential that only says whose it is: "ghp_", "-----BEGIN", or nothing."""
    known = ("-----BEGIN", "eyJ", *_PREFIXES)
    return next((prefix for prefix in known if value.startswith(prefix)), "")


def _with_prefix(text: str, prefix: str, rest: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    at = text.find(prefix)
    while at >= 0:
        match = rest.match(text, at + len(prefix))
        if match and not (at and _WORD_BEFORE.match(text[at - 1])) and _is_random(match[0]):
            yield at, match.end()
        at = text.find(prefix, match.end() if match else at + 1)


def _is_random(tail: str) -> bool:
    """Random characters hold digits and repeat little: not XXXXXXXX, not words with dashes."""
    return any(character.isdigit() for character in tail) and _entropy(tail) >= 3.0


def _entropy(value: str) -> float:
    """Shannon entropy of the characters, in bits per character."""
    n = len(value)
    return -sum(count / n * math.log2(count / n) for count in Counter(value).values())


def _tokens(text: str) -> Iterator[tuple[int, int]]:
    """JSON Web Tokens (RFC 7519): three parts, the first of them a JSON object with "alg"."""
    for match in _JWT.finditer(text):
        try:
            header = json.loads(base64.urlsafe_b64decode(match[1] + "=" * (-len(match[1]) % 4)))
        except (ValueError, binascii.Error):
            continue
        if isinstance(header, dict) and "alg" in header and re.search("[0-9]", match[0]):
            yield match.span()


_NAMES = ("password", "passwd", "pwd", "secret", "token", "key", "bearer", "密码", "口令", "密钥")
_KEY_OF_WHAT = re.compile(r"(?:api|access|auth|private|secret|encryption|signing)[_ -]?\Z", re.IGNORECASE)
_ASSIGNS = re.compile(
    r"[\"'`*]{0,3}[ \t]{0,3}(?::=|=>|[:=：])[ \t]{0,3}[*]{0,2}[ \t]?|为|是[ ]?", re.IGNORECASE
)
_BEARER = re.compile("[ ]")
_QUOTED = re.compile(r"[bru]?([\"'`])([^\s\"'`]{8,200})\1")
_BARE = re.compile(r"[^\s\"'`,;<>(){}\[\]|，。；]{8,200}(?=[\s\"'`,;<|，。；]|\Z)")
_PLACEHOLDER = re.compile(
    r"example|your|change|placeholder|dummy|sample|secret|passw|token|xxx|\.\.\.|\*\*\*|<|\A\$|\$[({]|\{|%\(|1234567|abcdef|test",
    re.IGNORECASE,
)
_IDENTIFIER_PATH = re.compile(r"[A-Za-z_]\w*(?:[./:-][A-Za-z_]\w*)+\Z")
_CLASSES = (re.compile("[a-z]"), re.compile("[A-Z]"), re.compile("[0-9]"), re.compile(r"[!@#$%^&*+/=~?-]"))


def _assigned(text: str) -> Iterator[tuple[int, int]]:
    for name, start in occurrences(text, _NAMES):
        end = start + len(name)
        if name == "key" and not _KEY_OF_WHAT.search(before(text, start, 12)):
            continue
        assigns = _ASSIGNS.match(text, end) if name != "bearer" else _BEARER.match(text, end)
        value = _value(text, assigns.end()) if assigns else None
        if value:
            yield value


def _value(text: str, at: int) -> tuple[int, int] | None:
    quoted = _QUOTED.match(text, at)
    if quoted:
        return quoted.span(2) if is_password(quoted[2], quoted=True) else None
    bare = _BARE.match(text, at)
    value = bare[0].rstrip(".!?:") if bare else ""
    return (at, at + len(value)) if is_password(value, quoted=False) else None


def is_password(value: str, quoted: bool) -> bool:
    """Clearly a literal secret: enough kinds of characters and entropy for its length, not code."""
    if len(value) < 8 or _PLACEHOLDER.search(value) or _IDENTIFIER_PATH.match(value):
        return False
    lower, upper, digit, sign = (bool(kind.search(value)) for kind in _CLASSES)
    entropy = _entropy(value)
    if not digit or entropy < 2.75:
        return False
    if lower and upper and sign:
        return True
    if len(value) >= 32 and entropy >= 3.0:  # 128 bits in hexadecimal
        return lower or upper
    if quoted:
        return (lower and upper and len(value) >= 10) or (sign and (lower or upper))
    return lower and upper and len(value) >= 16 and entropy >= 3.5 and len(re.findall("[0-9]", value)) >= 2


_URL_PASSWORD = re.compile(r"://[^\s/:@\"'<>]{0,64}:([^\s/:@\"'<>]{8,128})@[A-Za-z0-9\[]")


def _in_urls(text: str) -> Iterator[tuple[int, int]]:
    """The password of scheme://user:password@host."""
    for match in _URL_PASSWORD.finditer(text):
        if is_password(match[1], quoted=True) or (_has_two(match[1]) and not _PLACEHOLDER.search(match[1])):
            yield match.span(1)


def _has_two(value: str) -> bool:
    return bool(re.search("[A-Za-z]", value)) and len(re.findall("[0-9]", value)) >= 2
