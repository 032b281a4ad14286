"""Made-up examples of what is redacted, and what must survive. Check digits are computed, never real ones.

POSITIVES: (kind, text, the part that is replaced). NEGATIVES: texts that come out as they went in.
Shapes of credentials are put together at run time, so that no scanner of this repository takes them for real.
"""

from __future__ import annotations

import base64
import json

RANDOM = "q7Zt3MxK9vLw2RfB8nYc5HsJ4dGpT6XaQeUi1WzoNkVrDyEhSbFmCgPjAlOu0I"  # 62 characters, all different


def cn_id(front: str) -> str:
    """17 digits and their check digit (GB 11643)."""
    weights = [2 ** (17 - at) % 11 for at in range(17)]
    return front + "10X98765432"[sum(int(d) * w for d, w in zip(front, weights, strict=True)) % 11]


def card(front: str) -> str:
    """`front` and the last digit that makes its Luhn sum divisible by ten."""
    total = 0
    for at, digit in enumerate(reversed(front)):
        value = int(digit) * (2 if at % 2 == 0 else 1)
        total += value - 9 if value > 9 else value
    return front + str(-total % 10)


def iban(country: str, account: str) -> str:
    rest = "".join(str(int(c, 36)) for c in account + country + "00")
    return f"{country}{98 - int(rest) % 97:02d}{account}"


def fours(text: str, separator: str = " ") -> str:
    return separator.join(text[at : at + 4] for at in range(0, len(text), 4))


def jwt() -> str:
    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return f"{part({'alg': 'HS256', 'typ': 'JWT'})}.{part({'sub': 'u-71', 'iat': 1516239022})}.{RANDOM[:43]}"


def private_key(kind: str = "RSA ") -> str:
    lines = "\n".join((RANDOM[at:] + RANDOM)[:64] for at in range(5))
    return f"-----BEGIN {kind}PRIVATE KEY-----\n{lines}\nMIIE3w==\n-----END {kind}PRIVATE KEY-----"


def of(kind: str, before: str, value: str, after: str = "") -> tuple[str, str, str]:
    return kind, before + value + after, value


POSITIVES = [
    of("email", "Write to ", "jane.doe@corp-mail.com", "."),
    of("email", "邮箱", "zhangsan_88@qq.com", "，谢谢"),
    of("email", "<", "o'brien+news@mail.example.co.uk", ">"),
    of("email", "mailto:", "12345@163.com", "?subject=hi"),
    of("email", '{"e": "', "A.B-c@SUB.CORP-MAIL.ORG", '"}'),
    of("email", "cc ", "first.last@uni-münchen.de".replace("ü", "ue"), ", thanks"),
    of("email", "(", "x@y.io", ")"),
    of("email", "von ", "müller@firma.de"),
    of("email", "See ", "team@startup.dev", "! It is"),
    of("phone", "Call ", "+1 (212) 555-0123", " now"),
    of("phone", "Call ", "+12125550123", "."),
    of("phone", "UK: ", "+44 20 7946 0958"),
    of("phone", "", "+44 (0)20 7946 0958", ", London"),
    of("phone", "de ", "+49 30 901820", " ok"),
    of("phone", "fr ", "+33 1 23 45 67 89", "."),
    of("phone", "电话：", "+86 138 0013 8000"),
    of("phone", "", "+86-13912345678", "。"),
    of("phone", "in ", "+91 98765 43210"),
    of("phone", "", "(212) 555-0198", " is the desk"),
    of("phone", "at ", "212-555-0187", ","),
    of("phone", "at ", "415.555.2671", " or"),
    of("phone", "or ", "(555) 123-4567"),
    of("phone", "or ", "555-123-4567", "!"),
    of("phone", "[call](tel:", "13812345678", ")"),
    of("phone", "<td>", "13912345678", "</td>"),
    of("phone", "**", "13612345678", "**"),
    of("phone", "", "(+86)13512345678", "、"),
    of("phone", "at ", "1-800-555-0199"),
    of("phone", "office ", "650-253-0000 ext. 42", "."),
    of("phone", "手机", "13812345678", "。"),
    of("phone", "Zhang San, ", "159 1234 5678", ", Beijing"),
    of("phone", "联系人：李四（", "186-1234-5678", "）"),
    of("phone", "phone=", "17712345678", "&x=1"),
    of("phone", '"mobile": ', "19912345678", ","),
    of("phone", "座机 ", "010-62345678"),
    of("phone", "座机 ", "（0755）2345 6789", "。"),
    of("phone", "Tel. ", "020 7946 0958", "\n"),
    of("phone", "Phone number: ", "07700 900123"),
    of("phone", "Tél / phone: ", "01 23 45 67 89", " (matin)"),
    of("phone", "| ", "13712345678", " |"),
    of("cn_id", "身份证号", cn_id("11010519491231002"), "。"),
    of("cn_id", "ID ", cn_id("44030019900307123")),
    of("cn_id", "id=", cn_id("31011520010229999".replace("20010229", "20040229")), ";"),
    of("cn_id", "", cn_id("81000019881105432"), " "),
    of("cn_id", "证件 ", "110105 19880701 " + cn_id("11010519880701123")[14:], " 有效"),
    of("cn_id", "x: ", cn_id("11010519491231002").replace("X", "x"), "."),
    of("ipv4", "from ", "185.220.101.34", " port 22"),
    of("ipv4", "http://", "10.3.0.7", ":8080/x"),
    of("ipv4", "ssh root@", "45.33.32.156"),
    of("ipv4", "IP address: ", "10.20.30.44"),
    of("ipv4", "client ", "192.168.77.20", " said"),
    of("ipv4", "服务器地址为", "47.95.12.8", "。"),
    of("ipv4", '"', "172.217.16.142", '"'),
    of("ipv4", "a host ", "77.88.55.66", "/24"),
    of("ipv6", "at ", "2a00:1450:4001:81b::200e", "."),
    of("ipv6", "[", "2606:4700:4700:0:0:0:0:1234", "]:443"),
    of("ipv6", "link ", "fe80::1ff:fe23:4567:890a", "%eth0"),
    of("ipv6", "lan ", "fd12:3456:789a::17"),
    of("payment_card", "Visa ", card("411111111111111"), "."),
    of("payment_card", "", fours(card("454798132440987")), " exp 12/29"),
    of("payment_card", "卡号：", card("622202100011234567"), "，"),
    of("payment_card", "amex ", "3782 822463 10005"),
    of("payment_card", "mc ", fours(card("550000555555555"), "-"), "\n"),
    of("payment_card", "diners ", card("3056930902590")),
    of("payment_card", "card no. ", card("422222222222"), " "),
    of("payment_card", "jcb: ", card("353011133330000")),
    of("iban", "IBAN ", iban("DE", "370400440532013000"), "."),
    of("iban", "", fours(iban("GB", "WEST12345698765432")), " please"),
    of("iban", "pay ", fours(iban("FR", "20041010050500013M02606"))),
    of("iban", "到", iban("NL", "ABNA0417164300"), "。"),
    of("iban", "(", iban("CH", "0076201162385295E"[:17]), ")"),
    of("secret", "export AWS_ACCESS_KEY_ID=", "AKIA" + "J7Q2ZX4MN8VB6T3W"),
    of("secret", "token ", "ghp_" + RANDOM[:36], "."),
    of("secret", "", "github_pat_" + RANDOM[:22] + "_" + RANDOM[1:60]),
    of("secret", "", "glpat-" + RANDOM[:20], "\n"),
    of("secret", "slack ", "xoxb-" + "2093847561-4839201756-" + RANDOM[:24]),
    of("secret", "", "sk-" + RANDOM[:48], " "),
    of("secret", "key: ", "sk-proj-" + RANDOM[:40]),
    of("secret", "", "sk-ant-" + "api03-" + RANDOM + RANDOM[:24]),
    of("secret", "HF ", "hf_" + RANDOM[:34], ","),
    of("secret", "", "sk_live_" + RANDOM[:24]),
    of("secret", "?key=", "AIza" + RANDOM[:35], "&q=x"),
    of("secret", "Authorization: Bearer ", jwt(), "\n"),
    of("secret", "", private_key(), "\nnext"),
    of("secret", "", private_key("OPENSSH "), ""),
    of("secret", 'password = "', "Tr0ub4dor&3x", '"'),
    of("secret", "PASSWORD=", "kJ8#mPq2!vX", "\n"),
    of("secret", "api_key: '", "9f86d081884c7d659a2feaa0c55ad015", "'"),
    of("secret", "密码：", "Xk9$wQ2zLp", "，"),
    of("secret", "aws_secret_access_key = ", RANDOM[:40], "\n"),
    of("secret", "postgres://app:", "s3cr3Vq9x7".replace("s3cr3", "w8Kd"), "@db.internal/main"),
]

NEGATIVES = [
    # versions
    "pip install torch==2.13.0 and version 1.2.3.4",
    "Release 10.0.19041.1 of the driver 535.104.05",
    "upgrade from 1.2.3.4 to 1.2.3.5",
    "Firmware 120.90.6.109 is out",
    "package-1.2.3.4.tar.gz and lib-64.128.2.1",
    "v64.128.72.99",
    "requires foo >= 71.80.90.100",
    "section 3.2.1.4, clause 4.1.1.12",
    "OID 1.3.6.1.4.1.311.21.20",
    "10.0.1.2 fixes the bug",
    # dates, times, stamps
    "2024-01-15T10:30:00+0800",
    "2024-01-15 10:30:00.123456+00:00",
    "1700000000 1700000000123 1700000000123456789",
    "From 1999-2003 and 2003-2010",
    "15.11.2026, 11/30/2026, 20261130123456",
    "at 12:34:56 and 00:00:10:20",
    "phone: 2024-01-15",
    # hashes, identifiers, colours
    "550e8400-e29b-41d4-a716-446655440000",
    "12345678-1234-1234-1234-123456789012",
    "d41d8cd98f00b204e9800998ecf8427e",
    "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "commit 13812345678abcdef, file 13812345678.jpg",
    "colours #4111aa, #1381234 and 0x13812345678",
    "MAC 00:1a:2b:3c:4d:5e and EUI-64 20:01:0d:b8:00:00:00:01",
    "order-13812345678-22",
    "https://x.example/status/13812345678",
    "issue #13812345678",
    "IMG_13812345678_x",
    "ISBN 978-3-16-148410-0 and 0-306-40615-2",
    "ISBN 9783161484100, EAN 4006381333931",
    "DOI 10.1000/182.415.555",
    # numbers and maths
    "2^34 = 17179869184",
    "17179869184 bytes and 13000000000 tokens",
    "x = 13812345678",
    '{"total_memory": "17179869184"}',
    "b = (17643225600., 882161280., 13812345678.]",
    "13812345678 * 2",
    "3 * 13812345678 + 1",
    "it costs $13812345678 or ¥13812345678",
    "0.13812345678 and 13812345678.5 and 13,812,345,678",
    "pi = 3.141592653589793238462643",
    "4503599627370496 and 9007199254740992 and 18446744073709551616",
    "4611686018427387904",
    "5000000000000000",
    "<<3*4=12>>12 weasels, 100-50-4000",
    "1001 2002 3003 4004 5005",
    "212 555 0123 are three numbers",
    "200-100-4000 and 134-256-7890",
    "138 1234 5678 9012 in a row",
    "01 23 45 67 89 ab cd ef",
    "-13812345678 and +13812345678900000",
    "f(+100000000) - g(+300000000)",
    "共13800138000元",
    "range(212-555-1234)",
    "x = 212-555-1234",
    "64 128 256 512 1024 2048 4096 8192",
    "1111-2222-3333-4444",
    "4111 1111 1111 1112",
    "6.02214076e23, 1.602176634e-19",
    # code
    "@functools.lru_cache(maxsize=None)",
    "y = x@w.T + b",
    "(a@b.to(device)).sum()",
    "A@B.mT @ C.real",
    "git clone git@github.com:team/repo.git",
    "scp build.tar deploy@host.com:/srv/app",
    "icon@2x.png, sprite@3x.ai",
    "npm i lodash@4.17.21 @types/node@20.1",
    "getty@tty1.service and pi@raspberrypi.local",
    "user@host",
    "image@sha256:abcdef0123456789",
    "jane.doe@example.com, A@EXAMPLE.ORG and <ops@mail.eu.example.net>",
    "user@host.example, root@db.test, nobody@nowhere.invalid, me@localhost",
    "https://user@git.example.com/x.git",
    "std::vector<int> a; face::bad::f00d; x[1::2]",
    "a::b, dead::beef, 2000::3",
    "[::1]:8080, ::, fe80::1, 2001:db8::1000",
    "fd00:1234::/32 and 2a02:26f0::/32",
    "127.0.0.1:8080 0.0.0.0 255.255.255.0 192.0.2.33 198.51.100.7 203.0.113.9 224.0.0.251",
    "inet_aton('123.45.67.89')",
    "10.0.0.0/8 and 192.168.64.0/18",
    "navigate to 192.168.1.1",
    "dns 8.8.8.8 or 1.1.1.1",
    "256.300.1.2 and 999.888.777.666 and 192.168.01.77",
    'password = input("Password: ")',
    'password = os.environ["DB_PASSWORD_2"]',
    "token = secrets.token_hex(16)",
    "password: 8 characters or more",
    'password="changeme123!", secret="<your-secret-1>"',
    "api_key=YOUR_API_KEY_HERE_1234",
    "secret: ${VAULT_SECRET_1}",
    "token: str = tokens_BT[0]",
    'sort(key="Value2Rank")',
    "hf_hub_download, sk-learn-0.24, sk-" + "x" * 40,
    "ghp_" + "X" * 36,
    "AKIA is a prefix; AKIAXXXXXXXXXXXXXXXX",
    "eyJ is how a token starts; eyJhbGciOi.eyJzdWIiOi.short",
    "-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----",
    "-----BEGIN PUBLIC KEY-----\n" + RANDOM + "AB\n-----END PUBLIC KEY-----",
    "postgres://user:password@localhost/db",
    "see http://host:8080/x@y",
    "DE12 is a road, GB82 WEST is no account",
    "DE00370400440532013000",
    "AB12CDEF34567890123456",
    "110105194912310021",
    "身份证号为18位数字",
    "990105194912310025",
    "ports 8080-8090, 5432:5432, 3000/tcp",
    "grid 1280x720, 1920*1080",
    "phone screens are 6.1 inches, tel 12",
    "call 10000 times",
]
