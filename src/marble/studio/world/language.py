"""The words of the studio's world: objects, colours, styles, sign boards and the phrases they form.

Everything a prompt can say is listed here, so the tokenizer can be built from `vocabulary()`
and nothing the world ever writes is unknown to it. A prompt is cut into tokens by `tokens`:
a lower-case word or a punctuation mark is one token, and so is every capital letter, because a
model that is to spell must see letters.
"""

import re

PHRASE_TOKENS = 14
"""Upper bound on `len(tokens(prompt))` for every prompt of the world."""

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

# class name -> plural; all are COCO classes (with GenEval's names), chosen to differ at 22 px.
PLURALS: dict[str, str] = {
    "apple": "apples",
    "banana": "bananas",
    "broccoli": "broccolis",
    "carrot": "carrots",
    "pizza": "pizzas",
    "donut": "donuts",
    "cake": "cakes",
    "car": "cars",
    "bus": "buses",
    "train": "trains",
    "airplane": "airplanes",
    "boat": "boats",
    "bicycle": "bicycles",
    "dog": "dogs",
    "cat": "cats",
    "horse": "horses",
    "cow": "cows",
    "sheep": "sheep",
    "elephant": "elephants",
    "giraffe": "giraffes",
    "bird": "birds",
    "umbrella": "umbrellas",
    "clock": "clocks",
    "book": "books",
    "chair": "chairs",
    "laptop": "laptops",
    "cell phone": "cell phones",
    "scissors": "scissors",
    "backpack": "backpacks",
    "handbag": "handbags",
    "kite": "kites",
    "sports ball": "sports balls",
    "cup": "cups",
    "wine glass": "wine glasses",
    "potted plant": "potted plants",
    "vase": "vases",
    "traffic light": "traffic lights",
    "teddy bear": "teddy bears",
}
CLASSES: tuple[str, ...] = tuple(PLURALS)

COLORABLE: tuple[str, ...] = (
    "apple",
    "donut",
    "car",
    "bus",
    "train",
    "airplane",
    "boat",
    "bicycle",
    "cat",
    "elephant",
    "bird",
    "umbrella",
    "clock",
    "book",
    "chair",
    "scissors",
    "backpack",
    "handbag",
    "cup",
    "vase",
    "teddy bear",
)
"""Classes that stay recognisable in any colour; the others are drawn in natural colours only."""

COLORS: tuple[str, ...] = (
    "red",
    "orange",
    "yellow",
    "green",
    "blue",
    "purple",
    "pink",
    "black",
    "white",
)

# style -> (words before the subject, words after it)
STYLE_PHRASES: dict[str, tuple[str, str]] = {
    "cheerful": ("a cheerful picture of ", ""),
    "minimal": ("a minimal picture of ", ""),
    "vintage": ("a vintage picture of ", ""),
    "pastel": ("a pastel picture of ", ""),
    "night": ("", " at night"),
    "sunset": ("", " at sunset"),
    "snow": ("", " in the snow"),
    "rain": ("", " in the rain"),
}
STYLES: tuple[str, ...] = tuple(STYLE_PHRASES)

BOARDS: tuple[str, ...] = ("sign", "banner", "poster", "label")
NUMBERS: dict[str, int] = {"two": 2, "three": 3, "four": 4}
RELATIONS: tuple[str, ...] = ("left of", "right of", "above", "below")

_TOKEN = re.compile(r"[a-z]+|[A-Z]|[^\sA-Za-z]")


def tokens(prompt: str) -> list[str]:
    """The prompt cut into lower-case words, single capital letters and punctuation marks."""
    return _TOKEN.findall(prompt)


def with_article(noun: str) -> str:
    """`noun` with "a" or "an" before it."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def subject(name: str, count: int = 1, color: str | None = None) -> str:
    """How a prompt names objects: "a dog", "an orange car", "three wine glasses"."""
    if count == 1:
        return with_article(f"{color} {name}" if color else name)
    number = {n: word for word, n in NUMBERS.items()}[count]
    return f"{number} {color + ' ' if color else ''}{PLURALS[name]}"


def styled(what: str, style: str) -> str:
    """The subject phrase `what` with the words of `style` around it."""
    before, after = STYLE_PHRASES[style]
    return f"{before}{what}{after}"


def sign_phrase(text: str, board: str = "sign", color: str | None = None) -> str:
    """How a prompt asks for text: `a blue sign that says "TEA"`."""
    return f'{subject(board, color=color)} that says "{text}"'


def vocabulary() -> list[str]:
    """Every lower-case word and punctuation mark a prompt can hold, sorted.

    Capital letters are not listed: they are `LETTERS`.
    """
    phrases = ["a an and photo of that says", '"', *COLORS, *NUMBERS, *RELATIONS, *BOARDS]
    phrases += [*PLURALS.keys(), *PLURALS.values()]
    phrases += [before + after for before, after in STYLE_PHRASES.values()]
    return sorted({token for phrase in phrases for token in tokens(phrase)})
