"""What surrounds a number: whether it stands alone, or is part of a larger token, of arithmetic or of code.

Looks at no more than a fixed number of characters on either side, so that asking about every candidate of a
text stays linear. Letters and digits are ASCII here: a number that touches Chinese text stands alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

BEFORE = 48  # characters looked at
AFTER = 24
URL = 200

_JOINED_BEFORE = re.compile(
    r"""(?: [A-Za-z0-9_]             # the middle of a word or of a longer number
          | [0-9][.,:'’]             # a decimal, thousands, a time
          | [0-9A-Za-z_][-.]         # a UUID, a file, a dotted path
          | [-+]                     # a sign
          | [A-Za-z_]\w*[(\[]        # a call or an index
          | ["']\s*:\s*              # a bare number as a JSON value
          | [=^%&$€£¥￥\#\\]\s?      # assignment, arithmetic, money, an issue's number
          | [\w)][ ]?\*{1,2}[ ]?     # a product, but not **bold** at the start of a line or after a colon
          | (?:[<>+] | [\w)][ ]?/)[ ]
        )\Z""",
    re.ASCII | re.VERBOSE,
)
_JOINED_AFTER = re.compile(
    r"""(?: [A-Za-z0-9_@(\[]
          | [-.:'’][0-9]
          | -[A-Za-z]
          | \.[],]                   # a float: 17643225600.,
          | \.[a-z]{2,4}\b           # a file's suffix
          | ,[0-9]{3}(?![0-9])       # thousands
          | \s?[=^%] | \s[<>+]\s | \*{1,2}[\w(] | \s\*{1,2}\s[\w(]
          | \s?(?:bytes?|bits?|[kKMGT]i?B|ms|ns|us|µs|seconds?|secs?|s|[kMG]?Hz|km|kg|m|FLOPs?|tokens?|
                 parameters|params|dollars?|usd|USD|euros?|EUR|people|times|years?|rows?|iterations?|
                 steps?)(?![A-Za-z0-9_])
          | \s?(?:美元|人民币|元|次|人|年|毫秒|微秒|秒|字节|米|公里|个|万|亿|％)
        )""",
    re.ASCII | re.VERBOSE,
)
_IN_URL = re.compile(r"(?:://|www\.)[^\s<>\"'，。]*\Z")
_PHONE_WORD = re.compile(
    r"""(?: (?<![A-Za-z])(?:tele?phone|phone|tel|mobile|cell|cellphone|fax|whatsapp|wechat|contact)
            (?:[ _-]?(?:numbers?|no|nr|num|phone))?
          | (?<![A-Za-z])(?:call|dial|text|reach)(?:[ ](?:me|us|him|her|them))?
          | (?:联系|咨询|服务|客服)?电话
          | 手机 | 传真 | 热线 | 联系方式 | 致电 | 拨打 | 微信
        ) (?:号码?)? [^A-Za-z0-9_\n]{0,4} (?:(?:is|at|on|was)[ ]|为|是)? [^A-Za-z0-9_\n]{0,3}\Z""",
    re.ASCII | re.IGNORECASE | re.VERBOSE,
)


def before(text: str, start: int, characters: int = BEFORE) -> str:
    return text[max(0, start - characters) : start]


def after(text: str, end: int, characters: int = AFTER) -> str:
    return text[end : end + characters]


def follows_phone_word(text: str, start: int) -> bool:
    """Whether the text just before says that a telephone number comes: "Tel.: ", "phone=", "电话："."""
    return _PHONE_WORD.search(before(text, start)) is not None


def stands_alone(text: str, start: int, end: int) -> bool:
    """Whether text[start:end] is a number of its own, in prose, in a list, in quotes or in a table."""
    return not (joined_before(text, start) or joined_after(text, end))


def occurrences(text: str, words: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """Each of `words`, given in lower case, and where it stands, in any case. Much faster than one regular
    expression of alternatives; a text whose lower case is longer (a Turkish İ) is searched as it is."""
    lower = text.lower()
    if len(lower) != len(text):
        lower = text
    for word in words:
        at = lower.find(word)
        while at >= 0:
            yield word, at
            at = lower.find(word, at + len(word))


def joined_before(text: str, start: int) -> bool:
    """Whether the number began earlier, belongs to an expression or stands in a URL."""
    return bool(_JOINED_BEFORE.search(before(text, start)) or _IN_URL.search(before(text, start, URL)))


def joined_after(text: str, end: int) -> bool:
    """Whether the number goes on as a word, a longer number, a file's name or a quantity."""
    return _JOINED_AFTER.match(after(text, end)) is not None
