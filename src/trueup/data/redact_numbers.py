"""Finders of numbers that carry their own proof: identity, card and account numbers. Spans: [start, end)."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator

from .redact_context import before, joined_after, stands_alone
from .redact_tables import CN_PROVINCES, IBAN_LENGTHS

# The lookbehind comes after the first character, so that the scan stops at digits only.
_CN_ID = re.compile(
    r"[1-8](?<![0-9A-Za-z_].)[0-9]{5}([ -]?)((?:19|20)[0-9]{6})\1[0-9]{3}[0-9Xx](?![0-9A-Za-z_])", re.DOTALL
)
_CN_WEIGHTS = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)
_CN_CHECK = "10X98765432"
_DECIMAL_BEFORE = re.compile(r"[0-9][.,]\Z|[0-9A-Za-z_]-\Z")


def cn_ids(text: str) -> Iterator[tuple[int, int]]:
    """18-digit Chinese identity numbers (GB 11643): region, date of birth, check digit."""
    for match in _CN_ID.finditer(text):
        if is_cn_id(re.sub(r"[ -]", "", match[0])) and not _DECIMAL_BEFORE.search(
            before(text, match.start(), 2)
        ):
            yield match.span()


def is_cn_id(number: str) -> bool:
    """`number` is 17 digits and a digit or X."""
    total = sum(int(digit) * weight for digit, weight in zip(number, _CN_WEIGHTS, strict=False))
    if number[:2] not in CN_PROVINCES or _CN_CHECK[total % 11] != number[17].upper():
        return False
    try:
        datetime.date(int(number[6:10]), int(number[10:12]), int(number[12:14]))
    except ValueError:
        return False
    return True


_CARD = re.compile(
    r"[2-6](?<![0-9A-Za-z_].)[0-9]{3}"
    r"(?:[0-9]{10,15}|([ -])[0-9]{4}\1[0-9]{4}\1[0-9]{4}(?:\1[0-9]{3})?|([ -])[0-9]{6}\2[0-9]{4,5})"
    r"(?![0-9A-Za-z_])"
    r"|4(?<![0-9A-Za-z_].)[0-9]{12}(?![0-9A-Za-z_])",
    re.DOTALL,
)
_CARD_WORD = re.compile(
    r"(?:(?<![a-z])(?:card|visa|credit|debit|pan)(?:[ _-]?(?:number|no|nr|num))?|卡号|银行卡|信用卡)"
    r"[^A-Za-z0-9\n]{0,4}(?:is[ ]|为|是)?\Z",
    re.IGNORECASE,
)
_MORE_GROUPS = re.compile(r"[0-9][ -]\Z")


def payment_cards(text: str) -> Iterator[tuple[int, int]]:
    """13 to 19 digits with an issuer's prefix and length and a Luhn check digit, whole or in groups."""
    for match in _CARD.finditer(text):
        start, end = match.span()
        digits = re.sub(r"[ -]", "", match[0])
        if not is_card(digits) or joined_after(text, end):
            continue
        grouped = len(digits) < end - start
        if grouped and (
            _MORE_GROUPS.search(before(text, start, 2)) or re.match(r"[ -][0-9]", text[end : end + 2])
        ):
            continue
        named = _CARD_WORD.search(before(text, start, 32)) is not None
        # Without its word, 13 digits may be a barcode and 19 a large integer.
        if named or (stands_alone(text, start, end) and (grouped or len(digits) not in (13, 19))):
            yield start, end


def is_card(digits: str) -> bool:
    return _has_issuer(digits) and luhn(digits) and len(set(digits)) > 1 and not digits.endswith("00000000")


def luhn(digits: str) -> bool:
    """ISO/IEC 7812-1, annex B: every second digit from the right doubled, digit sums added, modulo 10."""
    doubled = (sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])
    return (sum(map(int, digits[-1::-2])) + sum(doubled)) % 10 == 0


def _has_issuer(digits: str) -> bool:
    """Prefix and length as the networks publish them: Visa, Mastercard, American Express, Diners, Discover,
    JCB, UnionPay, Mir, Maestro."""
    size, two, three, four = len(digits), int(digits[:2]), int(digits[:3]), int(digits[:4])
    if two == 34 or two == 37:
        return size == 15
    if 300 <= three <= 305 or two in (36, 38, 39):
        return size == 14
    if digits[0] == "4":
        return size in (13, 16, 19)
    if 51 <= two <= 55 or 2221 <= four <= 2720 or 2200 <= four <= 2204:
        return size == 16
    if four == 6011 or 644 <= three <= 649 or two in (62, 65) or 3528 <= four <= 3589:
        return 16 <= size <= 19
    return four in (5018, 5020, 5038, 5893, 6304, 6759, 6761, 6762, 6763) and size == 16


_IBAN_HEAD = re.compile(r"[A-Z](?<![0-9A-Za-z_].)[A-Z][0-9]{2}(?=[ ]?[0-9A-Z]{4})", re.DOTALL)
_ALNUM = frozenset("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ")


def ibans(text: str) -> Iterator[tuple[int, int]]:
    """ISO 13616: country, its length, and 1 modulo 97; written whole or in groups of four."""
    for match in _IBAN_HEAD.finditer(text):
        size = IBAN_LENGTHS.get(match[0][:2])
        end = _iban_end(text, match.start(), size) if size else 0
        if end and is_iban(text[match.start() : end].replace(" ", "")):
            yield match.start(), end


def _iban_end(text: str, start: int, size: int) -> int:
    """Where `size` characters end, with a space after every fourth or none at all; 0: not there."""
    spaced = text[start + 4 : start + 5] == " "
    end = start + size + ((size - 1) // 4 if spaced else 0)
    written = text[start:end]
    plain = written.replace(" ", "")
    if len(plain) != size or not _ALNUM.issuperset(plain):
        return 0
    if spaced and any(written[at] != " " for at in range(4, len(written), 5)):
        return 0
    follows = text[end : end + 1]
    return 0 if follows.isascii() and (follows.isalnum() or follows == "_") else end


def is_iban(number: str) -> bool:
    if sum(character.isdigit() for character in number[4:]) < 6:
        return False
    return int("".join(str(int(character, 36)) for character in number[4:] + number[:4])) % 97 == 1
