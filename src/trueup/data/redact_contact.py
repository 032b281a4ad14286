"""Finders of e-mail addresses and telephone numbers. Spans are [start, end) in the text."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .redact_context import after, before, follows_phone_word, joined_after, joined_before, occurrences
from .redact_tables import COUNTRY_CALLING_LENGTHS, TOP_LEVEL_DOMAINS

# RFC 5321: at most 64 characters before the @, 255 after it.
_LOCAL = re.compile(r"[A-Za-z0-9_À-ɏ](?:[A-Za-z0-9_À-ɏ.%+'-]{0,62}[A-Za-z0-9_À-ɏ+-])?\Z")
_LOCAL_CHARACTER = re.compile(r"[A-Za-z0-9_À-ɏ.%+'-]")
_DOMAIN = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,8}([A-Za-z]{2,24})(?![A-Za-z0-9_-])"
)
# RFC 2606: never anyone's, as the addresses of 192.0.2.0/24 are. Its names .test and .example are no known
# top-level domains.
_RESERVED = re.compile(r"(?:\A|\.)example\.(?:com|net|org)\Z", re.IGNORECASE)
_USER_OF_URL = re.compile(r"://[^\s/@]*\Z")
# A call `a@b.to(...)`, a path `git@host.com:team/x`, another label, another @.
_NOT_AN_ADDRESS_AFTER = re.compile(r"[(\[@=]|:[A-Za-z~/]|\.[A-Za-z0-9]")


def emails(text: str) -> Iterator[tuple[int, int]]:
    """local@label.tld with a known top-level domain. Not code (`a@b.T`, decorators), not `git@host:path`,
    not the user of a URL, not a package with its version, not at a domain reserved for examples."""
    at = text.find("@")
    while at >= 0:
        span = _email_around(text, at)
        if span:
            yield span
        at = text.find("@", max(at + 1, span[1] if span else 0))


def _email_around(text: str, at: int) -> tuple[int, int] | None:
    domain = _DOMAIN.match(text, at + 1)
    if not domain or not _is_top_level(domain[1]) or _NOT_AN_ADDRESS_AFTER.match(text, domain.end()):
        return None
    if re.match(r"\d+x\.", domain[0]) or _RESERVED.search(domain[0]):  # icon@2x.png and the like
        return None
    window = before(text, at, 65)
    # The longest tail that is a local part: walk back, then step over a leading quote, dot or plus sign.
    start = len(window)
    while start and _LOCAL_CHARACTER.match(window[start - 1]):
        start -= 1
    if start == 0 and len(window) == 65:  # longer than an address may be
        return None
    while start < len(window) and window[start] in ".%+'-":
        start += 1
    local = _LOCAL.match(window, start)
    if not local or ".." in local[0]:
        return None
    first = at - len(window) + start
    if before(text, first, 1) in ("/", "\\") and not before(text, first, 2).endswith("//"):
        return None
    return None if _USER_OF_URL.search(before(text, first, 100)) else (first, domain.end())


def _is_top_level(label: str) -> bool:
    """Known, and written in one case: `w@x.mT` is a product of matrices."""
    return label.lower() in TOP_LEVEL_DOMAINS and (label.islower() or label.isupper())


_INTERNATIONAL = re.compile(r"\+[0-9][0-9 ()./-]{5,26}")
_GROUP = re.compile(r"[0-9]+")
# Area code and exchange begin with 2 to 9, but not in all that people make up: (123) 456-7890, 555-123-4567.
_NORTH_AMERICAN = (
    re.compile(r"\((?:[0-9]{3}\)[ -]?[0-9]{3}[-.]|[2-9][0-9]{2}\) [2-9][0-9]{2} )[0-9]{4}(?![0-9A-Za-z_])"),
    re.compile(r"(?:555(?=[-.][0-9])|[2-9][0-9]{2}(?=[-.][2-9]))([-.])[0-9]{3}\1[0-9]{4}(?![0-9A-Za-z_])"),
)
_NORTH_AMERICAN_PREFIX = re.compile(r"(?<![0-9A-Za-z_.-])\+?1[-. ]\Z")
# Allocated to mobile networks in mainland China (MIIT numbering plan); the rest of 1[3-9] is not in use.
_CHINESE_MOBILE = re.compile(
    r"1(?:3[0-9]|4[014-9]|5[0-35-9]|6[2567]|7[0-8]|8[0-9]|9[0-35-9])"
    r"(?:[0-9]{8}|([ -])[0-9]{4}\1[0-9]{4})(?![0-9A-Za-z_])"
)
_CHINESE_PREFIX = re.compile(r"(?:(?:\+|00)?86|\((?:\+|00)86\)|（(?:\+|00)86）)[ -]?\Z")
_LANDLINE = r"([2-8][0-9]{2,3}[ -]?[0-9]{4})(?![0-9A-Za-z_])"
_CHINESE_LANDLINE = (
    re.compile(r"[(（](0[1-9][0-9]{1,2})[)）][ ]?" + _LANDLINE),
    re.compile(r"(0[1-9][0-9]{1,2})-" + _LANDLINE),
)
_DIGITS = r"(?:\([0-9]{1,5}\)|[0-9]{1,13})"
_AFTER_WORD = re.compile(rf"{_DIGITS}(?:[ ./-]{{1,2}}{_DIGITS}|(?<=\)){_DIGITS}){{0,6}}(?![0-9A-Za-z_])")
_WORDS = ("phone", "tel", "mobile", "fax", "whatsapp", "电话", "手机", "传真", "热线")
_WORD_BEGINS = re.compile(r"(?:\A|[^A-Za-z])(?:tele|cell)?\Z", re.IGNORECASE)
_WORD_ENDS = re.compile(
    r"(?:[ _-]?(?:number|no|nr|num)(?![a-z])|号码?)?[\"'*]{0,3}[ ]?"
    r"(?:[:：=#]|\.:?|(?:is|为|是))?[ ]?[\"'*]{0,3}[ ]?(?=[(0-9])",
    re.IGNORECASE,
)
_DATE_OR_ADDRESS = re.compile(
    r"(?:19|20)[0-9]{2}[-./][0-9]{1,2}[-./][0-9]{1,2}|(?:[0-9]{1,3}\.){3}[0-9]{1,3}\Z"
)
_EXTENSION = re.compile(r"[ ]?(?:ext\.?|x|转)[ ]?[0-9]{1,5}(?![0-9A-Za-z_])")


def phones(text: str) -> Iterator[tuple[int, int]]:
    """International numbers by calling code and length; North American ones with separators; Chinese mobile
    and landline ones; anything else of 7 to 13 digits only right after a word such as "tel" or "手机"."""
    for finder in (_international, _north_american, _chinese_mobile, _chinese_landline, _after_phone_word):
        for start, end in finder(text):
            longer = _EXTENSION.match(text, end)
            yield start, longer.end() if longer else end


def _accepted(text: str, start: int, end: int) -> bool:
    """In its surroundings; a word that announces a number outweighs what stands between them ("phone=",
    "tel-")."""
    if _EXTENSION.match(text, end) or not joined_after(text, end):
        return follows_phone_word(text, start) or not joined_before(text, start)
    return False


def _international(text: str) -> Iterator[tuple[int, int]]:
    at = text.find("+")
    while at >= 0:
        end = _international_end(text, at)
        if end and _accepted(text, at, end):
            yield at, end
        at = text.find("+", max(at + 1, end))


def _international_end(text: str, at: int) -> int:
    """Where the number that begins at the + ends; 0 when none does. Digits are taken group by group, as
    many as the calling code allows."""
    run = _INTERNATIONAL.match(text, at)
    if not run:
        return 0
    digits, end = "", 0
    last_end = at + 1
    for group in _GROUP.finditer(text, at + 1, run.end()):
        if group.start() - last_end > 3 or (
            group.end() == run.end() and text[run.end() : run.end() + 1].isdigit()
        ):
            break
        last_end = group.end()
        digits += group[0]
        if len(digits) > 15:  # ITU-T E.164
            break
        if _is_e164(digits, separated=group.end() - at - 1 > len(digits)):
            end = group.end()
    return end


def _is_e164(digits: str, separated: bool) -> bool:
    for width in (1, 2, 3):
        lengths = COUNTRY_CALLING_LENGTHS.get(digits[:width])
        if lengths is None:
            continue
        national = digits[width:]
        if digits[:width] == "1":
            return len(national) == 10 and national[0] in "23456789" and national[3] in "23456789"
        if digits[:width] == "86" and len(national) == 11:
            return _CHINESE_MOBILE.match(national) is not None or (separated and national[0] == "0")
        optional_zero = national.startswith("0") and separated  # +44 (0) 20 ...
        size = len(national) - optional_zero
        return size in lengths and not national.startswith("00")
    return False


def _north_american(text: str) -> Iterator[tuple[int, int]]:
    for pattern in _NORTH_AMERICAN:
        for match in pattern.finditer(text):
            start = match.start()
            country = _NORTH_AMERICAN_PREFIX.search(before(text, start, 4))
            if country:
                start -= len(country[0])
            if _accepted(text, start, match.end()):
                yield start, match.end()


def _chinese_mobile(text: str) -> Iterator[tuple[int, int]]:
    for match in _CHINESE_MOBILE.finditer(text):
        start, end = match.span()
        if match[0].endswith("000000") or match[0] == "17179869184":  # a round quantity; 16 GiB in bytes
            continue
        prefix = _CHINESE_PREFIX.search(before(text, start, 8))
        if prefix:
            start -= len(prefix[0])
        if match[1] and _in_a_row(text, start, end) and not follows_phone_word(text, start):
            continue
        if _accepted(text, start, end):
            yield start, end


def _in_a_row(text: str, start: int, end: int) -> bool:
    """Whether more groups of digits stand before or after: a column of numbers."""
    return bool(
        re.search("[0-9][ -]\\Z", before(text, start, 2)) or re.match("[ -][0-9]", after(text, end, 2))
    )


def _chinese_landline(text: str) -> Iterator[tuple[int, int]]:
    for pattern in _CHINESE_LANDLINE:
        for match in pattern.finditer(text):
            code, local = match[1], len(re.sub("[ -]", "", match[2]))
            # 010 and 02x are followed by 8 digits, 03xx to 09xx by 7 or 8.
            fits = (3, local) == (len(code), 8) if code[1] in "12" else len(code) == 4
            if fits and _accepted(text, match.start(), match.end()):
                yield match.span()


def _after_phone_word(text: str) -> Iterator[tuple[int, int]]:
    for word, at in occurrences(text, _WORDS):
        announces = _WORD_ENDS.match(text, at + len(word))
        number = _AFTER_WORD.match(text, announces.end()) if announces else None
        if not number or joined_after(text, number.end()):
            continue
        if word.isascii() and not _WORD_BEGINS.search(before(text, at, 5)):
            continue
        digits = re.sub("[^0-9]", "", number[0])
        if 7 <= len(digits) <= 13 and not digits.endswith("000000") and not _DATE_OR_ADDRESS.match(number[0]):
            yield number.span()
