r"""One spelling for answers that are written in different ways: `\dfrac{1}{2}` and `\frac{1}{2}`, `$x$` and `x`.

This changes only spelling, never meaning, and picks nothing out of a longer text. Pure standard library.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable, Iterator

MAX_LENGTH = 2000  # characters; a longer answer is compared as plain text only
MAX_DEPTH = 30  # nested brackets (3 in MATH; 50 would take seconds); deeper answers are compared as plain text only

_MAX_PEELS = 8  # wrappers around an answer to remove, which bounds the work on "((((((...))))))"
_UNREADABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # control characters, halves of surrogate pairs

_BMP = [chr(code) for code in range(0x80, 0x10000) if not 0xD800 <= code < 0xE000]
_TURNING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_FULL_WIDTH = {chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}
_SYMBOLS = str.maketrans(
    {sign: "-" for sign in _BMP if unicodedata.category(sign) == "Pd"}  # every dash
    | {
        "\N{MINUS SIGN}": "-",
        "\N{HYPHEN BULLET}": "-",
        "\N{MULTIPLICATION SIGN}": r"\times ",
        "\N{MIDDLE DOT}": r"\cdot ",
        "\N{DIVISION SIGN}": "/",
        "\N{PLUS-MINUS SIGN}": r"\pm ",
        "\N{INFINITY}": r"\infty ",
        "\N{DEGREE SIGN}": r"^\circ ",
        "\N{LESS-THAN OR EQUAL TO}": r"\le ",
        "\N{GREATER-THAN OR EQUAL TO}": r"\ge ",
        "\N{UNION}": r"\cup ",
        "\N{INTERSECTION}": r"\cap ",
        "\N{ELEMENT OF}": r"\in ",
        "\N{EMPTY SET}": r"\emptyset ",
        "\N{NOT EQUAL TO}": r"\ne ",
        "\N{FRACTION SLASH}": "/",
        "\N{DOT OPERATOR}": r"\cdot ",
        "\N{ALMOST EQUAL TO}": r"\approx ",
        "\N{LESS-THAN OR SLANTED EQUAL TO}": r"\le ",
        "\N{LESS-THAN OVER EQUAL TO}": r"\le ",
        "\N{GREATER-THAN OR SLANTED EQUAL TO}": r"\ge ",
        "\N{GREATER-THAN OVER EQUAL TO}": r"\ge ",
        "\N{N-ARY UNION}": r"\cup ",
        "\N{N-ARY INTERSECTION}": r"\cap ",
        "\N{BULLET OPERATOR}": r"\cdot ",
        "\N{ASTERISK OPERATOR}": "*",
        "\N{DIVISION SLASH}": "/",
        "\N{RATIO}": ":",
        "\N{MASCULINE ORDINAL INDICATOR}": r"^\circ ",
        "\N{RING ABOVE}": r"^\circ ",
        "\N{HORIZONTAL ELLIPSIS}": r"\ldots ",
        "\N{PRIME}": "'",
        "\N{LEFT FLOOR}": r"\lfloor ",
        "\N{RIGHT FLOOR}": r"\rfloor ",
        "\N{LEFT CEILING}": r"\lceil ",
        "\N{RIGHT CEILING}": r"\rceil ",
        "\N{MATHEMATICAL LEFT ANGLE BRACKET}": r"\langle ",
        "\N{MATHEMATICAL RIGHT ANGLE BRACKET}": r"\rangle ",
        "\N{IDEOGRAPHIC COMMA}": ",",
    }
    | {sign: rf"\mathbb{{{unicodedata.normalize('NFKC', sign)}}}" for sign in "\u2102\u2115\u2119\u211a\u211d\u2124"}
    | _FULL_WIDTH
    | {
        unicodedata.lookup(name): rf"\{command} "
        for command, name in (
            ("setminus", "SET MINUS"),
            ("notin", "NOT AN ELEMENT OF"),
            ("subset", "SUBSET OF"),
            ("subseteq", "SUBSET OF OR EQUAL TO"),
            ("supset", "SUPERSET OF"),
            ("supseteq", "SUPERSET OF OR EQUAL TO"),
            ("mp", "MINUS-OR-PLUS SIGN"),
            ("simeq", "ASYMPTOTICALLY EQUAL TO"),
            ("cong", "APPROXIMATELY EQUAL TO"),
            ("sim", "TILDE OPERATOR"),
            ("equiv", "IDENTICAL TO"),
            ("to", "RIGHTWARDS ARROW"),
            ("land", "LOGICAL AND"),
            ("lor", "LOGICAL OR"),
            ("neg", "NOT SIGN"),
            ("angle", "ANGLE"),
            ("triangle", "WHITE UP-POINTING TRIANGLE"),
            ("perp", "UP TACK"),
            ("parallel", "PARALLEL TO"),
            ("sum", "N-ARY SUMMATION"),
            ("prod", "N-ARY PRODUCT"),
            ("int", "INTEGRAL"),
            ("partial", "PARTIAL DIFFERENTIAL"),
            ("ell", "SCRIPT SMALL L"),
            ("phi", "GREEK PHI SYMBOL"),
            ("vartheta", "GREEK THETA SYMBOL"),
            ("epsilon", "GREEK LUNATE EPSILON SYMBOL"),
        )
    }
    | {
        unicodedata.lookup(f"GREEK {size} LETTER {name.upper().replace('LAMBDA', 'LAMDA')}"): rf"\{name} "
        for size, names in (
            (
                "SMALL",
                "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi "
                "chi psi omega",
            ),
            ("CAPITAL", "Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"),
        )
        for name in names.split()
    }
    | {
        sign: rf"\frac{{{above}}}{{{below}}}"
        for sign in map(chr, (0xBC, 0xBD, 0xBE, *range(0x2150, 0x215F)))  # one quarter to seven eighths
        for above, below in [unicodedata.normalize("NFKC", sign).split("\N{FRACTION SLASH}")]
    }
)
# Invisible characters, but those that turn the direction of writing. Between two digits they may hide what is written.
_UNSEEN = "[" + "".join(sign for sign in _BMP if unicodedata.category(sign) == "Cf" and sign not in _TURNING) + "]"
_INVISIBLE = re.compile(f"(?<![0-9]){_UNSEEN}+|{_UNSEEN}+(?![0-9])")
_ALL_INVISIBLE = re.compile(_UNSEEN)
_AS_ASCII = str.maketrans(_FULL_WIDTH)
_SMALL = {  # raised and lowered signs: 2, +, n
    style: {
        sign: unicodedata.normalize("NFKC", sign).replace("\N{MINUS SIGN}", "-")
        for sign in map(chr, (0xB2, 0xB3, 0xB9, *range(0x2B0, 0x2E5), *range(0x1D2C, 0x1D6B), *range(0x2070, 0x209D)))
        if unicodedata.decomposition(sign).startswith(f"<{style}>")
        and unicodedata.normalize("NFKC", sign).replace("\N{MINUS SIGN}", "-").isascii()
    }
    for style in ("super", "sub")
}

_UNIT_LETTERS = {"m": "meter", "g": "gram", "s": "second", "h": "hour", "l": "liter", "L": "liter", "N": "newton"}
_UNIT_LETTERS |= {"J": "joule", "W": "watt", "V": "volt"}
_FUNCTIONS = "(?:arc)?(?:sin|cos|tan|cot|sec|csc)|(?:sin|cos|tan)h|ln|log|exp"
_TEXT_COMMANDS = "text|textnormal|textrm|textbf|textit|mbox|hbox|mathrm|mathbf|mathit"
_SPELLINGS: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
    (r"\N{SUPERSCRIPT MINUS}(?= ?[\w\\])(?<![\w)}\]]\N{SUPERSCRIPT MINUS})|(?<= )\N{SUPERSCRIPT MINUS}(?= )", "-"),
    (f"[{''.join(_SMALL['super'])}]+", lambda match: "^{" + "".join(_SMALL["super"][sign] for sign in match[0]) + "}"),
    (f"[{''.join(_SMALL['sub'])}]+", lambda match: "_{" + "".join(_SMALL["sub"][sign] for sign in match[0]) + "}"),
    *(
        (f"{sign} ?{argument}", rf"\\sqrt{degree}{{\1}}")
        for sign, degree in (
            ("\N{SQUARE ROOT}", ""),
            ("\N{CUBE ROOT}", "[3]"),
            ("\N{FOURTH ROOT}", "[4]"),
            (r"(?:\\|(?<![A-Za-z\\]))sqrt(?= ?[(0-9])", ""),
        )
        for argument in (
            r"([0-9]+(?:\.[0-9]+)?|[A-Za-z]|\\[a-z]+(?![A-Za-z{]))",
            r"[(]((?:[^()]|[(][^()]*[)])*)[)]",
            r"\{([^{}]*)\}",
        )
    ),
    (r"^[1-9][0-9]{0,2}(?: [0-9]{3})+$", lambda match: match[0].replace(" ", "")),  # 1 319
    (r"\\(?:[dtcs]|nice)frac(?![A-Za-z])", r"\\frac"),
    (r"\\\\ ?\[[0-9.]+ ?[a-z]{2}\]", r"\\\\"),  # space below a row
    (r"(?<=[0-9])\^ ?\{? ?o ?\}?(?![A-Za-z])", r"^\\circ "),
    (r"\\text ?\{ ?: ?\}", ":"),
    (r"\\frac ?(\\[A-Za-z]+(?![A-Za-z{])) ?(\\[A-Za-z]+(?![A-Za-z{])|[0-9A-Za-z])", r"\\frac{\1}{\2}"),
    (r"\\frac ?([0-9A-Za-z]) ?(\\[A-Za-z]+(?![A-Za-z{]))", r"\\frac{\1}{\2}"),
    (r"\\frac ?([0-9]) ?([0-9])", r"\\frac{\1}{\2}"),
    (r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|rm|bf|it)(?![A-Za-z])", ""),
    (r"(?<=[0-9]), ?\\! ?(?=[0-9])", ","),
    (r"(?<!\\)\\!", ""),
    (r"(?<=[0-9])(?:\{,\}|\\,)(?=[0-9]{3}(?![0-9]))", ","),  # 1{,}319 and 1\,319
    (r"(?<![0-9.,{(\[])([1-9][0-9]{0,2}(?:,[0-9]{3})+)(?![0-9,])", lambda match: match[1].replace(",", "")),
    (r"(?<!\\)\\[,;: ]|~(?! ?=)|\\(?:q?quad|(?:neg)?(?:thin|med|thick)space)(?![A-Za-z])", " "),  # ~= is one sign
    (r"\\([$%])", r"\1"),
    (r"\^ ?\{ ?\\circ ?\}|\^ ?\\circ(?![A-Za-z])|\\degree(?![A-Za-z])", r"^\\circ "),
    # Bare single letters are variables; inside \text they are units.
    (
        rf"(?<=[0-9}})\] ])\\(?:text|mbox|mathrm)\s*\{{\s*([{''.join(_UNIT_LETTERS)}])\s*\}}",
        lambda match: f" {_UNIT_LETTERS[match[1]]}",
    ),
    (rf"\\(?:{_TEXT_COMMANDS})\s*\{{([^{{}}]*)\}}", r" \1"),
    (rf"\\(?:{_TEXT_COMMANDS})\s*\{{([^{{}}]*)\}}", r" \1"),  # once more, for \textbf{\text{A}}
    (r"_ +(?=[0-9{])", "_"),
    (r"(?<![A-Za-z])(?:US|USD|AU?|CAD?|NZ|HK) ?\\?\$(?= ?[0-9.])|\\textdollar(?![A-Za-z])|^USD ?(?=[0-9])", "$"),
    (r"(?<![\\A-Za-z])(?:pi|PI|Pi)(?![A-Za-z])", r"\\pi "),
    (r"(?i)(?<![\\A-Za-z])(?:infinity|oo)(?![A-Za-z])", r"\\infty "),
    (r"\^ ?(-[0-9]+)(?![0-9.])", r"^{\1}"),
    (rf"(?<![\\A-Za-z])({_FUNCTIONS})(?= ?[(_^0-9\\{{]| [A-Za-z](?![A-Za-z]))", r"\\\1"),  # ln(2)
    (r"(?<=[0-9]) ?[xX] ?(?=10 ?\^)", r" \\times "),  # 1.5x10^3
    (r"\\big(cup|cap)(?![A-Za-z])(?! ?(?:[_^]|\\limits))", r"\\\1 "),
    (r"\\lbrace(?![A-Za-z])", r"\\{"),
    (r"\\rbrace(?![A-Za-z])", r"\\}"),
    (r"\\varnothing(?![A-Za-z])|\\\{ *\\\}", r"\\emptyset "),
    (r"\\(?:neq|not *=|not *\\eq)(?![A-Za-z])|(?<=[A-Za-z)}\]]) ?!= ?(?!=)", r"\\ne "),
    (r"\\mathbb ?R(?![A-Za-z])|\\(?:R|reals|Reals|Bbb ?\{R\})(?![A-Za-z])", r"\\mathbb{R}"),
    (r"\( ?- ?\\infty ?, ?\+? ?\\infty ?\)", r"\\mathbb{R}"),
    (r"(?i)^ *(?:the set of )?(?:all|any) real(?: number)?s? *$", r"\\mathbb{R}"),
    (r"(?i) ?(?<![A-Za-z])(?:per ?cent|pct)$", "%"),
    (r"\\[lc]?dots[bcimo]?(?![A-Za-z])", "..."),
    (r"\\land(?![A-Za-z])", " and "),
    (r"\\lor(?![A-Za-z])", " or "),
    (r"\\[dt]binom(?![A-Za-z])", r"\\binom"),
    (r"\\binom ?([0-9A-Za-z]) ?([0-9A-Za-z])", r"\\binom{\1}{\2}"),
    (r"\{([^{}]+)\\choose(?![A-Za-z])([^{}]+)\}", r"\\binom{\1}{\2}"),
    (r"^([^{}\\]+)\\choose(?![A-Za-z])([^{}\\]+)$", r"\\binom{\1}{\2}"),
    (r"(\^ ?(?:[0-9]|\{ ?[0-9]+ ?\})) +(?=[0-9]+(?![0-9./]))", r"\1 \\cdot "),  # 2^6 3^5
    (r"\{:\}", ":"),
    (r"(?<=[A-Za-z0-9)])\*\*(?=[A-Za-z0-9(-])", "^"),
    (r"^[A-Za-z] ?\\in(?![A-Za-z])", ""),  # x \in [0, 1] is [0, 1]
]
_COMPILED_SPELLINGS = [(re.compile(pattern), replacement) for pattern, replacement in _SPELLINGS]

_BRACKETS = re.compile(
    r"(?P<open>\\begin(?![A-Za-z])|\\\{|\\langle(?![A-Za-z])|[(\[{])"
    r"|(?P<close>\\end(?![A-Za-z])|\\\}|\\rangle(?![A-Za-z])|[)\]}])"
    r"|(?P<separator>(?:[,;] ?)?(?<![\\A-Za-z])(?:and|or)(?![A-Za-z])|[,;])"
    r"|(?P<union>\\cup(?![A-Za-z]))"
    r"|\\."
)
# (3,) and \{1,2;\}: an unfinished list, or a list of one if one value is asked for.
_BREAKS_OFF = re.compile(r"(?<!\\)[,;](?:\s|\\[,;:! ]|\\q?quad(?![A-Za-z]))*\\?[)\]}]")


# In front of an answer: a sign, a size or a colour, "Answer:".
_LEADING = re.compile(
    r"^(?:(?:\\approx|=|#+ |####|⇒|∴|\\(?:Rightarrow|implies|therefore|tiny|small|normalsize|large|huge)"
    r"|\\color ?\{(?!white)[a-z]+\})(?![A-Za-z]) ?|(?:(?:the )?(?:final )?answer(?: is)?|答案) ?[:\uff1a] ?"
    r"|(?:option|choice) (?=\(?[a-z][).]?$))",
    re.IGNORECASE,
)
_PERCENT = re.compile(r" ?\\?%$")
_QUOTES = (
    ("```", "```"), ("``", "``"), ("``", "''"), ("`", "`"), ("***", "***"), ("**", "**"), ("__", "__"), ("*", "*"),
    ('"', '"'), ("'", "'"), ("\u201c", "\u201d"), ("\u2018", "\u2019"), ("「", "」"), ("『", "』"), ("«", "»"),
)  # fmt: skip
_CLOSING = tuple({end for _, end in _QUOTES})
_ENVIRONMENT = re.compile(
    r"\\begin ?\{((?:equation|align|aligned|gather|gathered|displaymath|math|center)\*?)\}(.*)\\end ?\{\1\}"
)
_STYLE = re.compile(  # commands that change how their one argument looks
    r"\\(?:math(?!bb|cal|frak|scr)[a-z]+|text[a-z]*|boldsymbol|bm|pmb|emph|under(?:line|brace)|overbrace|operatorname"
    r"|[mh]box|bbox ?(?:\[[^\]]*\])?) ?(?=\{)"
)


def seen(text: str) -> str:
    """Return a text as it looks: without invisible characters, and with full-width forms as ASCII."""
    return text if text.isascii() else _ALL_INVISIBLE.sub("", text.translate(_AS_ASCII))


def canonical(answer: str) -> str:
    r"""Return the canonical spelling of an answer.

    White space is collapsed, wrappers (`$...$`, `\boxed{...}`, `\text{...}`, redundant parentheses, a final full stop)
    are removed, and LaTeX commands with the same meaning are unified. The result is "" for an empty answer or one with
    unreadable characters (NUL, halves of surrogate pairs). Above `MAX_LENGTH` only white space is collapsed.
    """
    text = _INVISIBLE.sub("", " ".join(answer.translate(_AS_ASCII).split()))
    if _UNREADABLE.search(text):
        return ""
    return text if len(text) > MAX_LENGTH else _canonical(text)


@functools.lru_cache(maxsize=4096)  # every completion of a group is compared with one gold answer
def _canonical(text: str) -> str:
    return peel(" ".join(spelled(peel(text.translate(_SYMBOLS))).split()))


def spelled(text: str) -> str:
    """Unify signs and LaTeX commands with the same meaning, without removing anything."""
    text = text.translate(_SYMBOLS)
    for pattern, replacement in _COMPILED_SPELLINGS:
        text = pattern.sub(replacement, text)
    return text


def peel(text: str) -> str:
    """Remove the wrappers around an answer."""
    for _ in range(_MAX_PEELS):
        peeled = _peel_once(text.strip())
        if peeled == text:
            break
        text = peeled
    return text


def _peel_once(text: str) -> str:
    text = re.sub(
        r"(?:(?<![.,;:\\])[.,;:\u3002\uff0e✓✔✅]|(?<!\\)\\|\\\\|\\checkmark|(?<=^[A-Z])\))$", "", text
    ).rstrip()
    text = _LEADING.sub("", text)
    if text.endswith("%") and (percent := _PERCENT.search(text)) and percent.start():
        inner = _peel_once(text[: percent.start()])
        if inner != text[: percent.start()]:
            return f"{inner}{percent[0].strip()}"
    for start, end in _QUOTES if text.endswith(_CLOSING) else ():
        inner = text[len(start) : len(text) - len(end)]
        if inner and text.startswith(start) and text.endswith(end) and start not in inner and end not in inner:
            return re.sub(r"^(?:latex|tex|math|text) (?=.)", "", inner.strip()) if start == "```" else inner
    if environment := _ENVIRONMENT.fullmatch(text):
        return environment[2]
    if tagged := re.fullmatch(r"<(b|strong|i|em|u|code)>(.*)</\1>", text):
        return tagged[2]
    if (style := _STYLE.match(text)) and is_enclosed(text[style.end() :]):
        return text[style.end() + 1 : -1]
    for start, end in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
        inner = text[len(start) : len(text) - len(end)]
        unescaped = inner.replace(r"\$", "")
        wraps = text.startswith(start) and text.endswith(end) and not text.endswith(r"\$")
        if wraps and unescaped and start not in unescaped and end not in unescaped:
            return inner
    for start in (r"\boxed", r"\fbox"):
        boxed = text.removeprefix(start).lstrip()
        if text.startswith(start) and is_enclosed(boxed) and boxed[0] == "{":
            return boxed[1:-1]
        if text.startswith(start) and boxed[:1].isdigit():
            return boxed
    if is_enclosed(text) and text[0] + text[-1] in ("()", "{}") and len(split_top_level(text[1:-1])) == 1:
        return text if _BREAKS_OFF.search(text) else text[1:-1]
    return text


def breaks_off(text: str) -> bool:
    """Return whether a list in brackets ends with its separator, as in `(3,)`."""
    return _BREAKS_OFF.search(text) is not None


def is_oversized(text: str) -> bool:
    """Return whether a text is longer than `MAX_LENGTH` or nested deeper than `MAX_DEPTH`."""
    return len(text) > MAX_LENGTH or any(depth > MAX_DEPTH for _, depth in _walk(text))


def is_enclosed(text: str) -> bool:
    r"""Return whether the text's last character closes its first bracket: `(1,2)`, but not `(1)(2)`.

    `]` may close `(`, and `)` may close `[`, as in half-open intervals.
    """
    opening = _BRACKETS.match(text)
    if opening is None or not opening["open"]:
        return False
    for match, depth in _walk(text):
        if depth == 0:
            return match.end() == len(text)
    return False


def split_top_level(text: str, separator: str = "separator") -> list[str]:
    r"""Split at separators (`,` `;` `and` `or`; or `\cup` for `separator="union"`) outside all brackets.

    A text with unbalanced brackets, or with nothing between two separators, is one part.
    """
    parts, start, depth = [], 0, 0
    for match, depth in _walk(text):
        if depth < 0:
            return [text]
        if depth == 0 and match[separator]:
            parts.append(text[start : match.start()].strip())
            start = match.end()
    parts.append(text[start:].strip())
    return parts if depth == 0 and all(parts) else [text]


def connectives(text: str) -> frozenset[str]:
    """Return which of `and` and `or` occur between the parts of the text and inside their brackets."""
    return frozenset(match["separator"].lstrip(",; ") for match, _ in _walk(text) if match["separator"]) - {""}


def _walk(text: str) -> Iterator[tuple[re.Match[str], int]]:
    """Yield brackets and separators from left to right, each with the bracket depth after it."""
    depth = 0
    for match in _BRACKETS.finditer(text):
        if match["open"]:
            depth += 1
        elif match["close"]:
            depth -= 1
        yield match, depth
