"""Finders of IPv4 and IPv6 addresses. Spans are [start, end) in the text.

Kept: loopback, unspecified, documentation (RFC 5737, RFC 3849, RFC 9637), multicast, reserved, netmasks, what
routers are shipped with, ranges written as a network (10.0.0.0/8), and placeholders whose digits merely count
up (123.45.67.89)."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from .redact_context import after, before

_FOUR = re.compile(
    r"[0-9](?<![0-9A-Za-z_.].)[0-9]{0,2}(?:\.[0-9]{1,3}){3}(?![0-9A-Za-z_]|\.[0-9A-Za-z]|[+-][A-Za-z])",
    re.DOTALL,
)
_VERSION_WORD = re.compile(
    r"(?:(?<![A-Za-z])(?:version|versions|ver|vers|v|release|rev|revision|build|firmware|"
    r"driver|update|upgraded?|upgrade[ ]to|section|chapter|"
    r"clause|python|java|windows|chrome|sdk|api)\.?|[§~<>=!^]=?|版本号?|固件|章|节|升级到)"
    r"[^A-Za-z0-9_\n]{0,3}\Z",
    re.IGNORECASE,
)
_ADDRESS_WORD = re.compile(
    r"(?:(?<![A-Za-z])(?:ip(?:v4)?|address|addr|ipaddr|remote_addr|hostname|host|gateway|nameserver|dns|inet|subnet|"
    r"ping|ssh|telnet|curl|client_ip)|地址|网关|主机|://|@)"
    r"[^A-Za-z0-9_\n]{0,4}(?:(?:is|at|was|of)[ ]|为|是)?[^A-Za-z0-9_\n]{0,2}\Z",
    re.IGNORECASE,
)
_PORT = re.compile(r":[0-9]{2,5}(?![0-9A-Za-z_.:])")
_PREFIX = re.compile(r"/([0-9]{1,3})(?![0-9A-Za-z_])")
# What millions of routers and modems are shipped with is nobody's address, and instructions need it.
_SHIPPED = frozenset(
    f"192.168.{rest}"
    for rest in ("0.1", "1.1", "1.254", "2.1", "8.1", "10.1", "31.1", "50.1", "100.1", "178.1")
) | {"10.0.0.1", "10.0.0.138", "10.1.1.1"}
_KEPT_4 = [
    ipaddress.IPv4Network(network)
    for network in (
        "0.0.0.0/8",
        "127.0.0.0/8",
        "192.0.2.0/24",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/3",
    )
]


def ipv4_addresses(text: str) -> Iterator[tuple[int, int]]:
    """Dotted quads that are addresses: by a word, a port, a URL or an @ beside them, or by at least two parts
    of 64 and more where no word speaks of a version. 1.2.3.4 and 10.0.1.2 alone read as versions."""
    if text.count(".") < 3:
        return
    for match in _FOUR.finditer(text):
        if _is_personal_4(match[0]) and _is_address(text, *match.span()):
            yield match.span()


def _is_personal_4(quad: str) -> bool:
    try:
        address = ipaddress.IPv4Address(quad)  # refuses parts above 255 and leading zeros
    except ValueError:
        return False
    if quad in _SHIPPED or quad.replace(".", "") in "1234567890" or max(address.packed) < 10:
        return False  # a placeholder; also 1.1.1.1 and 8.8.8.8, resolvers of the public
    return not any(address in network for network in _KEPT_4)


def _is_address(text: str, start: int, end: int) -> bool:
    left, right = before(text, start, 40), after(text, end)
    if re.search(r"[A-Za-z0-9_]-\Z", left):  # a package: name-1.2.3.4
        return False
    prefix = _PREFIX.match(right)
    if prefix and int(prefix[1]) < 32:
        return ipaddress.ip_interface(text[start:end]).ip != _network(text[start:end], prefix[1])
    if _ADDRESS_WORD.search(left) or _PORT.match(right):
        return True
    parts = [int(part) for part in text[start:end].split(".")]
    return sum(part >= 64 for part in parts) >= 2 and not _is_version(left, parts)


def _is_version(left: str, parts: list[int]) -> bool:
    """After a word such as "version" or "upgrade to"; yet no version begins with 128 or more."""
    return parts[0] < 128 and _VERSION_WORD.search(left) is not None


def _network(address: str, prefix: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_network(f"{address}/{prefix}", strict=False).network_address


_COLONS = re.compile(r"[0-9A-Fa-f](?<![0-9A-Za-z_:.].)[0-9A-Fa-f:]{5,38}(?![0-9A-Za-z_:])", re.DOTALL)
_PERSONAL_6 = [ipaddress.IPv6Network(network) for network in ("2000::/3", "fc00::/7", "fe80::/10")]
_KEPT_6 = [ipaddress.IPv6Network(network) for network in ("2001:db8::/32", "3fff::/20")]


def ipv6_addresses(text: str) -> Iterator[tuple[int, int]]:
    """Global, unique local and link-local unicast addresses of at least three written groups: never
    `std::abs`, a slice `x[1::2]`, a time or a MAC address."""
    if text.count(":") < 3:
        return
    for match in _COLONS.finditer(text):
        written, end = match[0].rstrip(":"), match.end()
        if match[0].endswith("::"):
            written = match[0]
        end = match.start() + len(written)
        if _is_personal_6(written) and not _is_network_6(written, text, end):
            yield match.span()[0], end


def _is_personal_6(written: str) -> bool:
    groups = [group for group in written.split(":") if group]
    if len(groups) < 3 or len(groups[0]) < 3 or all(len(group) == 2 for group in groups):
        return False
    try:
        address = ipaddress.IPv6Address(written)
    except ValueError:
        return False
    return any(address in n for n in _PERSONAL_6) and not any(address in n for n in _KEPT_6)


def _is_network_6(written: str, text: str, end: int) -> bool:
    prefix = _PREFIX.match(after(text, end))
    if not prefix or int(prefix[1]) >= 128:
        return False
    return ipaddress.IPv6Address(written) == _network(written, prefix[1])
