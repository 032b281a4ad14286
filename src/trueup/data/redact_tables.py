"""Tables that the finders hold candidates against: calling codes, account lengths, regions, domains."""

from __future__ import annotations

# Calling code -> lengths of the national number without its trunk zero (national numbering plans under ITU-T
# E.164). A code that is absent here is not recognised.
COUNTRY_CALLING_LENGTHS: dict[str, frozenset[int]] = {
    code: frozenset(range(low, high + 1))
    for codes, low, high in (
        ("1 7", 10, 10),
        ("20", 8, 10),
        ("27 30 40 48 90", 9, 10),
        ("31 32 33 34 36 41 45 46 47", 8, 10),
        ("39 43 49", 7, 12),
        ("44", 9, 10),
        ("51 52 53 54 56 57 58", 8, 11),
        ("55", 10, 11),
        ("60 61 62 63 64 66", 8, 11),
        ("65", 8, 8),
        ("81 82 84", 8, 11),
        ("86", 10, 11),
        ("91 92 93 94 95 98", 8, 10),
        ("212 213 216 218", 8, 9),
        ("220 221 222 223 224 225 226 227 228 229", 7, 10),
        ("230 231 232 233 234 235 236 237 238 239", 7, 10),
        ("240 241 242 243 244 245 248 249 250 251", 7, 10),
        ("252 253 254 255 256 257 258 260 261 262", 7, 10),
        ("263 264 265 266 267 268 269 297 298 299", 6, 10),
        ("350 351 352 353 354 355 356 357 358 359", 7, 11),
        ("370 371 372 373 374 375 376 377 378 380", 7, 11),
        ("381 382 383 385 386 387 389 420 421 423", 7, 11),
        ("501 502 503 504 505 506 507 509 590 591", 7, 9),
        ("592 593 594 595 596 597 598 599", 7, 9),
        ("670 672 673 674 675 676 677 678 679", 6, 8),
        ("680 682 685 686 687 688 689 691 692", 6, 8),
        ("852 853 855 856 880 886 960 961 962 963", 7, 10),
        ("964 965 966 967 968 970 971 972 973 974", 7, 10),
        ("975 976 977 992 993 994 995 996 998", 7, 10),
    )
    for code in codes.split()
}

# ISO 13616 registry: characters of an account number, by country.
_IBANS = """
AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 DK18 DO28 EE20
EG29 ES24 FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HN28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30
KW30 KZ20 LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MN20 MR27 MT31 MU30 NI28 NL18 NO15 OM23
PK24 PL28 PS29 PT25 QA29 RO24 RS22 RU33 SA24 SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26
UA29 VA22 VG24 XK20 YE30
"""
IBAN_LENGTHS: dict[str, int] = {entry[:2]: int(entry[2:]) for entry in _IBANS.split()}

# GB/T 2260: first two digits of an identity number; 81, 82, 83 are residence permits of people from Hong
# Kong, Macao and Taiwan.
_PROVINCES = """
11 12 13 14 15 21 22 23 31 32 33 34 35 36 37 41 42 43 44 45 46 50 51 52 53 54 61 62 63 64 65 71 81
82 83
"""
CN_PROVINCES = frozenset(_PROVINCES.split())

# Country-code domains (ISO 3166-1 as delegated by IANA), then generic ones that mail is often seen under.
_DOMAINS = """
ac ad ae af ag ai al am ao aq ar as at au aw ax az ba bb bd be bf bg bh bi bj bm bn bo br bs bt bw by bz ca
cc cd cf cg ch ci ck cl cm cn co cr cu cv cw cx cy cz de dj dk dm do dz ec ee eg er es et eu fi fj fk fm fo
fr ga gd ge gf gg gh gi gl gm gn gp gq gr gs gt gu gw gy hk hm hn hr ht hu id ie il im in io iq ir is it je
jm jo jp ke kg kh ki km kn kp kr kw ky kz la lb lc li lk lr ls lt lu lv ly ma mc md me mg mh mk ml mm mn mo
mp mq mr ms mt mu mv mw mx my mz na nc ne nf ng ni nl no np nr nu nz om pa pe pf pg ph pk pl pm pn pr ps pt
pw py qa re ro rs ru rw sa sb sc sd se sg sh si sj sk sl sm sn so sr ss st su sv sx sy sz tc td tf tg th tj
tk tl tm tn to tr tt tv tw tz ua ug uk us uy uz va vc ve vg vi vn vu wf ws ye yt za zm zw com org net edu
gov mil int info biz name pro aero coop museum jobs mobi travel tel cat asia post app dev cloud online site
shop store tech xyz top club vip work team email mail blog news media agency company consulting digital
design studio solutions services systems software technology group global world today life live space
website network academy education school university health care clinic doctor law legal finance bank capital
fund expert art photo video music games gmbh ltd inc llc berlin london paris tokyo nyc
"""
TOP_LEVEL_DOMAINS = frozenset(_DOMAINS.split())
