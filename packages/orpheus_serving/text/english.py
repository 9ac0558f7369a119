"""English words for what is written in digits and signs.

    "Dr. Lee paid $3.50 at 15:30" -> "Doctor Lee paid three dollars and fifty cents at fifteen thirty"

`say` applies the rules at the end of the module in order; each rule is a pattern that reads a bounded stretch, and a
function from its match to words. What a rule writes holds no digits or signs, so no later rule takes it apart again.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from .boundaries import STARTERS


def _words(text: str) -> list[str]:
    return text.split()


_ONES = _words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
)
_TENS = ["", "", *_words("twenty thirty forty fifty sixty seventy eighty ninety")]
_SCALES = ["", *_words("thousand million billion trillion quadrillion")]
_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
LONGEST_NUMBER = 18  # digits; longer ones are read digit by digit

MONTHS = _words("January February March April May June July August September October November December")
_MONTH = {name[:3].lower(): name for name in MONTHS} | {name.lower(): name for name in MONTHS} | {"sept": "September"}

# ------------------------------------------------------------------------------------------------------- numbers


def cardinal(number: int) -> str:
    """`1905` as "one thousand nine hundred five"; at most LONGEST_NUMBER digits."""
    if number < 0:
        return "minus " + cardinal(-number)
    if number < 20:
        return _ONES[number]
    groups = []
    for scale in _SCALES:
        number, group = divmod(number, 1000)
        if group:
            groups.append(f"{_below_thousand(group)} {scale}".rstrip())
        if not number:
            break
    return " ".join(reversed(groups))


def _below_thousand(number: int) -> str:
    hundreds, rest = divmod(number, 100)
    words = [_ONES[hundreds], "hundred"] if hundreds else []
    if rest >= 20:
        words.append(_TENS[rest // 10])
        rest %= 10
    if rest:
        words.append(_ONES[rest])
    return " ".join(words)


def ordinal(number: int) -> str:
    """`21` as "twenty first"."""
    *before, last = cardinal(number).split()
    regular = last[:-1] + "ieth" if last.endswith("y") else last + "th"
    return " ".join([*before, _ORDINALS.get(last, regular)])


def year(number: int) -> str:
    """`1984` as "nineteen eighty four", `2005` as "two thousand five", `1900` as "nineteen hundred"."""
    century, rest = divmod(number, 100)
    if century % 10 == 0 and rest < 10:
        return cardinal(number)
    if not rest:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} {'oh ' if rest < 10 else ''}{cardinal(rest)}"


def roman(text: str) -> int:
    """`XIV` as 14."""
    values = [{"I": 1, "V": 5, "X": 10}[char] for char in text]
    return sum(-a if a < b else a for a, b in zip(values, [*values[1:], 0], strict=True))


def digits(text: str) -> str:
    """The decimal digits of `text`, one by one."""
    return " ".join(_ONES[int(char)] for char in text if char in "0123456789")


def number(text: str) -> str:
    """A number as written: `1,250`, `3.14`, `.5`, `007`, `1.2.3`."""
    whole, *parts = text.replace(",", "").split(".")
    if not whole:
        said = "zero"
    elif len(whole) > LONGEST_NUMBER or (whole[0] == "0" and len(whole) > 1):
        said = digits(whole)
    else:
        said = cardinal(int(whole))
    return " point ".join([said, *(digits(part) if len(parts) == 1 else number(part) for part in parts)])


def _plural(word: str) -> str:
    return word[:-1] + "ies" if word.endswith("y") else word + ("es" if word.endswith("x") else "s")


# -------------------------------------------------------------------------------------------------------- tables

_CURRENCIES = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "\u20ac": ("euro", "euros", "cent", "cents"),
    "\u00a3": ("pound", "pounds", "penny", "pence"),
    "\u00a5": ("yen", "yen", "sen", "sen"),
    "\u20b9": ("rupee", "rupees", "paisa", "paise"),
}
_MAGNITUDES = {"k": "thousand", "m": "million", "mn": "million", "b": "billion", "bn": "billion", "t": "trillion"}

# One and many, as they follow a number.
_UNITS: dict[str, tuple[str, str]] = {
    "\u00b0C": ("degree Celsius", "degrees Celsius"),
    "\u00b0F": ("degree Fahrenheit", "degrees Fahrenheit"),
    "\u00b0": ("degree", "degrees"),
    "%": ("percent", "percent"),
    "km/h": ("kilometer per hour", "kilometers per hour"),
    "kmh": ("kilometer per hour", "kilometers per hour"),
    "m/s": ("meter per second", "meters per second"),
    "Mbps": ("megabit per second", "megabits per second"),
    "Gbps": ("gigabit per second", "gigabits per second"),
    "mph": ("mile per hour", "miles per hour"),
    "ft": ("foot", "feet"),
    "Hz": ("hertz", "hertz"),
    "kHz": ("kilohertz", "kilohertz"),
    "MHz": ("megahertz", "megahertz"),
    "GHz": ("gigahertz", "gigahertz"),
    "sq ft": ("square foot", "square feet"),
} | {
    sign: (name, _plural(name))
    for sign, name in {
        "km": "kilometer",
        "m": "meter",
        "cm": "centimeter",
        "mm": "millimeter",
        "mi": "mile",
        "yd": "yard",
        "kg": "kilogram",
        "g": "gram",
        "mg": "milligram",
        "lb": "pound",
        "lbs": "pound",
        "oz": "ounce",
        "l": "liter",
        "L": "liter",
        "ml": "milliliter",
        "mL": "milliliter",
        "KB": "kilobyte",
        "kB": "kilobyte",
        "MB": "megabyte",
        "GB": "gigabyte",
        "TB": "terabyte",
        "ms": "millisecond",
        "s": "second",
        "sec": "second",
        "min": "minute",
        "h": "hour",
        "hr": "hour",
        "hrs": "hour",
        "W": "watt",
        "kW": "kilowatt",
        "MW": "megawatt",
        "kWh": "kilowatt hour",
        "V": "volt",
        "px": "pixel",
    }.items()
}

_ABBREVIATIONS = {
    "Dr": "Doctor",
    "Mr": "Mister",
    "Mrs": "Missus",
    "Ms": "Miz",
    "Prof": "Professor",
    "Gen": "General",
    "Sen": "Senator",
    "Rep": "Representative",
    "Gov": "Governor",
    "Capt": "Captain",
    "Lt": "Lieutenant",
    "Col": "Colonel",
    "Sgt": "Sergeant",
    "Rev": "Reverend",
    "Hon": "Honorable",
    "Mt": "Mount",
    "Jr": "Junior",
    "Sr": "Senior",
    "Inc": "Incorporated",
    "Ltd": "Limited",
    "Co": "Company",
    "Corp": "Corporation",
    "Dept": "Department",
    "Ave": "Avenue",
    "Blvd": "Boulevard",
    "Rd": "Road",
    "Apt": "Apartment",
    "Mon": "Monday",
    "Tue": "Tuesday",
    "Wed": "Wednesday",
    "Thu": "Thursday",
    "Fri": "Friday",
    "approx": "approximately",
    "Approx": "Approximately",
    "vs": "versus",
    "etc": "et cetera",
    "est": "established",
    "Fig": "Figure",
    "Vol": "Volume",
    "e.g": "for example",
    "E.g": "For example",
    "i.e": "that is",
    "I.e": "That is",
    "a.m": "A M",
    "p.m": "P M",
    "A.M": "A M",
    "P.M": "P M",
    "Ph.D": "P H D",
} | {name[:3]: name for name in MONTHS if name != "May"}
# These stay in place of their stop where a sentence ends on them.
_CAN_END = frozenset(_words("Jr Sr Inc Ltd Co Corp Ave Blvd Rd etc a.m p.m A.M P.M Ph.D"))

_PRONOUNCED = frozenset(
    _words(
        "NASA NATO UNESCO UNICEF RAM ROM SIM PIN GIF LAN WAN AIDS OPEC SWAT LED CUDA OK COVID LASER RADAR ASAP YOLO "
        "ALL ANY BAD BIG BYE DAY END FUN GET GO GOOD GREAT HEY HI JUST LOVE MAN ME MY NEW NOW OH ONE OUT RED RUN SEE "
        "STOP TOO TRY TWO UP US VERY WAR WAY WIN WOW YAY YEAH WORD HA HAHA AHA UH UM HUH MOM DAD"
    )
) | {word.upper() for word in STARTERS}
_SPELLED = frozenset(_words("API CEO USA CIA FBI IBM AWS AI UI IO EU UK UN URL USB IEEE AOL IOS ETA FAQ DIY HDMI JPEG ISO"))

_SIGNS = {
    "&": "and",
    "+": "plus",
    "=": "equals",
    "@": "at",
    "#": "hash",
    "%": "percent",
    "\u00d7": "times",
    "\u00f7": "divided by",
    "\u00b1": "plus or minus",
    "\u2264": "less than or equal to",
    "\u2265": "greater than or equal to",
    "\u2260": "not equal to",
    "\u2248": "about",
    "\u00b0": "degrees",
    "\u00a7": "section",
    "\u03c0": "pi",
    "\u221e": "infinity",
    "\u221a": "square root of",
    "/": "slash",
    **{sign: names[1] for sign, names in _CURRENCIES.items()},
}
_ADDRESS_SIGNS = {
    ".": "dot",
    "@": "at",
    "/": "slash",
    "-": "dash",
    "_": "underscore",
    ":": "colon",
    "?": "question mark",
    "=": "equals",
    "&": "and",
    "#": "hash",
    "%": "percent",
    "+": "plus",
    "~": "tilde",
}

# --------------------------------------------------------------------------------------------------------- rules


def _address(text: str) -> str:
    """A mail or web address: its words, its signs by name, its digits one by one."""
    text = re.sub(r"^https?://", "", text, flags=re.IGNORECASE).rstrip("/")
    said = []
    for part in re.findall(r"[^\W\d_]+|\d|[^\w\s]|_", text):
        if part.isdigit():
            said.append(digits(part))
        elif part.isalpha():
            said.append("W W W" if part.lower() == "www" else part)
        else:
            said.append(_ADDRESS_SIGNS.get(part, ""))
    return " ".join(filter(None, said))


def _url(match: re.Match[str]) -> str:
    text = match[0].rstrip(".,!?;:)]'")
    return f" {_address(text)} " + match[0][len(text) :]


def _phone(match: re.Match[str]) -> str:
    plus = "plus " if match[0].lstrip().startswith("+") else ""
    groups = [digits(group) for group in re.findall(r"\d+", match[0])]
    return f" {plus}{', '.join(groups)} "


def _date(year_: str | None, month: int, day: int, otherwise: str) -> str:
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return otherwise
    said = f"{MONTHS[month - 1]} {ordinal(day)}"
    return f"{said}, {year(int(year_))}" if year_ else said


def _slash_date(match: re.Match[str]) -> str:
    month, day = int(match[1]), int(match[2])
    if month > 12:
        month, day = day, month
    return _date(match[3], month, day, match[0])


def _month_day(match: re.Match[str]) -> str:
    name = _MONTH[match[1].lower()]
    return _date(match[3], MONTHS.index(name) + 1, int(match[2]), match[0])


def _day_month(match: re.Match[str]) -> str:
    if not 1 <= int(match[1]) <= 31:
        return match[0]
    said = f"the {ordinal(int(match[1]))} of {_MONTH[match[2].lower()]}"
    return f"{said}, {year(int(match[3]))}" if match[3] else said


def _time(match: re.Match[str]) -> str:
    hour, minute, half = int(match[1]), int(match[2] or 0), match[3]
    if hour > 24 or minute > 59:
        return match[0]
    if minute:
        said = f"{cardinal(hour)} {'oh ' if minute < 10 else ''}{cardinal(minute)}"
    elif half:
        said = cardinal(hour)
    else:
        said = f"{cardinal(hour)} o'clock" if 1 <= hour <= 12 else f"{cardinal(hour)} hundred"
    end = "." if half and match[0].endswith(".") and _ends_here(match) else ""
    return said + (f" {half.upper()} M" if half else "") + end


def _ends_here(match: re.Match[str]) -> bool:
    """Whether the stop at the end of the match also ends the sentence: a sentence starter or nothing follows."""
    after = match.string[match.end() : match.end() + 24].lstrip(" \"')")
    word = re.match(r"[A-Za-z]*", after)
    return not after or bool(word and word[0][:1].isupper() and word[0].lower() in STARTERS)


def _money(match: re.Match[str]) -> str:
    one, many, cent, cents = _CURRENCIES[match["sign"] or match["sign2"]]
    whole = match["whole"] or match["whole2"]
    part = match["part"] or match["part2"]
    scale = match["scale"]
    minus = "minus " if match["minus"] else ""
    if scale:
        amount = number(f"{whole}.{part}" if part else whole)
        return f" {minus}{amount} {_MAGNITUDES.get(scale.lower(), scale.lower())} {many} "
    if part and len(part) != 2:
        return f" {minus}{number(f'{whole}.{part}')} {many} "
    said = [f"{number(whole)} {one if whole == '1' else many}"] if whole.strip("0") or not (part and int(part)) else []
    if part and int(part):
        said.append(f"{cardinal(int(part))} {cent if int(part) == 1 else cents}")
    return f" {minus}{' and '.join(said)} "


def _unit(match: re.Match[str]) -> str:
    one, many = _UNITS[match[2]]
    return f"{match[1]} {one if match[1] == '1' else many}"


def _fraction(match: re.Match[str]) -> str:
    whole, above, below = match[1], int(match[2]), int(match[3])
    lead = f"{number(whole.strip())} and " if whole else ""
    if (above, below) == (24, 7):
        return lead + "twenty four seven"
    if below == 2 and above == 1:
        return lead + ("a half" if whole else "one half")
    if above == below and not whole:
        return f"{cardinal(above)} {cardinal(below)}"
    if not 0 < above < below or not (below in (100, 1000) or 2 < below <= 20):
        return f"{match[1] or ''}{cardinal(above)} over {cardinal(below)}"
    part = "quarter" if below == 4 else ordinal(below)
    return f"{lead}{cardinal(above)} {part}{'' if above == 1 else 's'}"


def _decade(match: re.Match[str]) -> str:
    value = int(match[1])
    *before, last = (year(value) if value >= 100 else cardinal(value)).split()
    return " ".join([*before, _plural(last)])


def _whole(match: re.Match[str]) -> str:
    text = match[0]
    said = year(int(text)) if len(text) == 4 and "1100" <= text <= "2099" else number(text)
    return f" {said} "


def _ordinal(match: re.Match[str]) -> str:
    text = match[1].replace(",", "")
    return ordinal(int(text)) if len(text) <= LONGEST_NUMBER else digits(text)


def _abbreviation(match: re.Match[str]) -> str:
    short = match[1]
    stop = "." if short in _CAN_END and _ends_here(match) else ""
    return _ABBREVIATIONS[short] + stop


def _saint_or_street(match: re.Match[str]) -> str:
    """ "Main St." is a street, "St. Mary" a saint: a capitalised word before means a street."""
    if match[1]:
        return f"{match[1]} Street" + ("." if _ends_here(match) else "")
    return "Saint" if re.match(r" [A-Z]", match.string[match.end() : match.end() + 2]) else "Street"


def _initials(match: re.Match[str]) -> str:
    return " ".join(match[0].replace(".", " ").upper().split()) + ("." if _ends_here(match) else " ")


def _initial(match: re.Match[str]) -> str:
    return match[0] if _ends_here(match) else match[1]


def _capitals(match: re.Match[str]) -> str:
    word, plural = match[1], match[2]
    vowels = re.search(r"[AEIOUY]", word)
    if word in _PRONOUNCED or (vowels and len(word) > 3 and word not in _SPELLED):
        return match[0]
    return " ".join(word) + ("'s" if plural else "")


def _hashtag(match: re.Match[str]) -> str:
    return " hashtag " + re.sub(r"(?<=[a-z])(?=[A-Z0-9])|_", " ", match[1]) + " "


def _sign(match: re.Match[str]) -> str:
    return f" {_SIGNS[match[0]]} "


def _one_of(words: object) -> str:
    return "|".join(sorted(map(re.escape, words), key=len, reverse=True))  # type: ignore[call-overload]


_MONTH_NAME = _one_of([*MONTHS, *(name[:3] for name in MONTHS), "Sept"])
_GROUPED = r"\d{1,3}(?:,\d{3})+(?!,\d{3})"  # all groups there are; not possessive, see normalise.py
_NUMBER = rf"{_GROUPED}|\d++"
_NUMBERED = "Chapter|Part|War|Act|Book|Volume|Phase|Type|Section|Level|Figure|Bowl"
_ROMAN = "X{0,3}(?:IX|IV|V?I{1,3}|V)|X{1,3}"
_CURRENCY = "[" + "".join(map(re.escape, _CURRENCIES)) + "]"
_DOMAINS = "com|org|net|io|ai|dev|app|edu|gov|co|uk|de|fr|eu"

Say = Callable[[re.Match[str]], str] | str
RULES: list[tuple[re.Pattern[str], Say]] = [
    (re.compile(pattern), say)
    for pattern, say in (
        # addresses
        (r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}", _url),
        (r"(?i:https?://|\bwww\.)[^\s<>\"]+", _url),
        (rf"(?<![\w.@-])(?:[A-Za-z0-9-]{{1,63}}\.){{1,5}}(?:{_DOMAINS})\b(?!\.\w)(?:/[^\s<>\"]*)?", _url),
        # telephone numbers
        (r"(?<![\w.])(?:\+?\d{1,3}[ .-])?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}(?![\w-])", _phone),
        (r"(?<![\w.])\+\d{1,3}(?:[ -]\d{1,4}){2,6}(?![\w-])", _phone),
        (r"(?<![\w.-])\d{3}-\d{4}(?![\w-])", _phone),
        # dates and times
        (r"\b(\d{4})-(\d{1,2})-(\d{1,2})\b", lambda m: _date(m[1], int(m[2]), int(m[3]), m[0])),
        # ranges
        (rf"({_CURRENCY}) ?(\d[\d,.]{{0,20}}) ?- ?{_CURRENCY}?(?=\d)", r"\1\2 to \1"),
        (r"(?<=\d)-(?=\d+-\d)|(?<=-\d)-(?=\d)", " "),
        (r"(?<=\d)-(?=\d)", " to "),
        (r"(?<=\ds)-(?=\d)", " to "),
        (r"(?<![\w:.,])(\d{1,3}):(\d)(?![\w:.])", r"\1 to \2"),
        (r"(?<![\d/])(\d{1,2})/(\d{1,2})/(\d{4})(?![\d/])", _slash_date),
        (rf"\b({_MONTH_NAME})\.? (\d{{1,2}})(?:st|nd|rd|th)?(?:,? (\d{{4}}))?(?![\w:%]|[.,]\d)", _month_day),
        (rf"\b(\d{{1,2}})(?:st|nd|rd|th)? ({_MONTH_NAME})\b\.?(?:,? (\d{{4}})\b)?", _day_month),
        (r"(?<![\w:.,])(\d{1,2})(?::(\d{2}))? ?([AaPp])(?:\.[Mm]\.|[Mm]\b)", _time),
        (r"(?<![\w:.,])(\d{1,2}):(\d{2})(?![\w:])()", _time),
        (r"(?<![\w.,])'?([1-9]0|[12]\d\d0)'?s\b", _decade),
        # money, units, fractions
        (
            rf"(?P<minus>(?<!\w)-)?(?:US)?(?:(?P<sign>{_CURRENCY}) ?(?P<whole>{_NUMBER})(?:\.(?P<part>\d++))?"
            r"(?: ?(?P<scale>thousand|million|billion|trillion|[kKmMbBtT]n?)(?!\w))?"
            rf"|(?<![\w.,])(?P<whole2>{_NUMBER})(?:[.,](?P<part2>\d\d))? ?(?P<sign2>[\u20ac\u00a3\u00a5]))",
            _money,
        ),
        (rf"(?<![\w.,])((?:{_NUMBER})(?:\.\d++)?) ?({_one_of(_UNITS)})(?![\w/])(?:\.(?= [a-z]))?", _unit),
        (r"(?<![\d/.])(\d{1,6} )?(\d{1,3})/(\d{1,4})(?![\d/]|\.\d)", _fraction),
        # signs that belong to a number
        (r"(?<![\w)\]])-(?=\.?\d)", "minus "),
        (r"(?<=\d) ?[*x] ?(?=\d)", " times "),
        (r"~(?=\d)", "about "),
        (r"(?<=[A-Za-z] )<3(?![\w.])", "love"),
        (r"(?:^|(?<=[.!?:] ))#{1,6} ", ""),
        (r"#(?=\d)", "number "),
        (r"\b(?:[Nn]o\.|[Nn]r\.) ?(?=\d)", "number "),
        (r"\bpp?\. ?(?=\d)", "page "),
        # numbers
        (rf"(?<!\d)({_NUMBER})(?:st|nd|rd|th)\b", _ordinal),
        (rf"(?<!\d)(?:{_NUMBER})?(?:\.\d+)+(?!\.?\d)", lambda m: f" {number(m[0])} "),
        (rf"{_GROUPED}(?!\d)|\d++", _whole),
        # abbreviations and letters
        (r"(?:\b([A-Z][a-z]{1,24}) )?\bSt\.", _saint_or_street),
        (rf"(?<![\w.])({_one_of(_ABBREVIATIONS)})\.", _abbreviation),
        (r"(?<![\w.])vs(?!\w)", "versus"),
        (r"(?<![\w.])(?:[A-Za-z]\.){2,12}(?!\w)", _initials),
        (r"(?<![\w.'])([A-Z])\.(?= [A-Z])", _initial),
        (rf"\b({_NUMBERED}) ({_ROMAN})\b", lambda m: f"{m[1]} {cardinal(roman(m[2]))}"),
        (rf"\b([A-Z][a-z]{{1,24}}) (?!I\b|V\b|X\b)({_ROMAN})\b", lambda m: f"{m[1]} the {ordinal(roman(m[2]))}"),
        (r"(?<![\w'])([A-Z]{2,6})(s)?(?![\w'])", _capitals),
        # signs
        (r"\bw/(?=\w| )", "with "),
        (r"(?<=\b[CF])#", " sharp"),
        (r"#([A-Za-z]\w{0,63})", _hashtag),
        (r"(?:^| )<=? ", " less than "),
        (r"(?<![.!?…]) >=? ", " greater than "),  # after a sentence, as at a line's start, it quotes
        (f"[{''.join(map(re.escape, _SIGNS))}]", _sign),
    )
]


def say(text: str) -> str:
    """`text` with words for numbers, money, dates, times, units, addresses, abbreviations and signs."""
    has_digits = any(map(str.isdigit, text))
    for pattern, words in RULES:
        if has_digits or r"\d" not in pattern.pattern:  # every rule that names a digit needs one
            text = pattern.sub(words, text)
    return text
