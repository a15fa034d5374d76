"""`numerals`: generated German phrases around numbers, dates, clock times and money with their English translations.

The translation task that needs no download. num2words and Babel write the words, a few frames put them into clauses.
The order of words really changes: "dreiundzwanzig" is "twenty-three", "am dreiundzwanzigsten märz" is "on march
twenty-third", "halb drei" is "half past two", and in "..., dass das buch zwölf euro kostet" the verb stands last.

Everything follows from one fixed seed. Test and validation hold values (numbers, dates, times, amounts) that no
training phrase of the kind has.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from functools import cache
from importlib.metadata import version
from pathlib import Path

from pipemare_exp.data.bitext import SOURCE, Bitext, Text
from pipemare_exp.data.cache import sha256
from pipemare_exp.errors import UserError

SEED = 1910
PAIRS = {"train": 20_000, "valid": 500, "test": 500}
MERGES = 600
"""BPE merges: enough to give the parts of number words, few enough that whole numbers stay cut."""

MOST = 40_000
"""Training phrases that can be asked for: there are 720 times of day, and not much more to say about each."""

SHARES = {"number": 0.35, "date": 0.25, "time": 0.2, "money": 0.2}
"""The part of each kind in every split."""

DAY_PARTS = (("", ""), (" morgens", " in the morning"), (" nachmittags", " in the afternoon"), (" nachts", " at night"))

Pair = tuple[str, str]
Speaker = Callable[[random.Random, int], Pair]

# A frame is (German, English); {} is the phrase. The German verb leaves its second place in subordinate clauses, and
# separable ones go to the end.
FRAMES: dict[str, tuple[Pair, ...]] = {
    "number": (
        ("{}", "{}"),
        ("die zahl {}", "the number {}"),
        ("ich habe {} bücher gelesen", "i have read {} books"),
        ("wir wissen, dass dort {} menschen wohnen", "we know that {} people live there"),
        ("heute kamen {} gäste an", "{} guests arrived today"),
    ),
    "date": (
        ("am {}", "on {}"),
        ("sie wurde am {} geboren", "she was born on {}"),
        ("das treffen findet am {} statt", "the meeting takes place on {}"),
        ("er sagt, dass der kurs am {} beginnt", "he says that the course begins on {}"),
    ),
    "time": (
        ("um {}", "at {}"),
        ("der zug fährt um {} ab", "the train leaves at {}"),
        ("ich weiß, dass der film um {} anfängt", "i know that the film starts at {}"),
        ("um {} stehen wir auf", "we get up at {}"),
    ),
    "money": (
        ("{}", "{}"),
        ("das kostet {}", "that costs {}"),
        ("ich glaube, dass das rad {} kostet", "i think that the bike costs {}"),
        ("gestern hat sie {} ausgegeben", "she spent {} yesterday"),
    ),
}


@cache
def words(number: int, language: str, form: str = "cardinal") -> str:
    """`number` in words, in lower case: num2words' cardinal, ordinal or year."""
    from num2words import num2words

    return num2words(number, lang=language, to=form).lower()


@cache
def _names(language: str) -> tuple[dict[int, str], dict[int, str]]:
    """Babel's names of months (1..12) and of days of the week (0: Monday), in lower case."""
    from babel.dates import get_day_names, get_month_names

    months, days = get_month_names("wide", locale=language), get_day_names("wide", locale=language)
    return {k: months[k].lower() for k in range(1, 13)}, {k: days[k].lower() for k in range(7)}


def say_number(draw: random.Random, value: int) -> Pair:
    """A cardinal number: the German joins its parts and says the units before the tens."""
    return words(value, "de"), words(value, "en")


def say_date(draw: random.Random, value: int) -> Pair:
    """Day `value` since 1 January 1801, with or without its weekday; day and month change places in English."""
    day = date(1801, 1, 1) + timedelta(days=value)
    (months_de, days_de), (months_en, days_en) = _names("de"), _names("en")
    german = f"{words(day.day, 'de', 'ordinal')}n {months_de[day.month]} {words(day.year, 'de', 'year')}"
    english = f"{months_en[day.month]} {words(day.day, 'en', 'ordinal')}, {words(day.year, 'en', 'year')}"
    if draw.random() < 0.5:
        german, english = f"{days_de[day.weekday()]}, dem {german}", f"{days_en[day.weekday()]}, {english}"
    return german, english


def say_time(draw: random.Random, value: int) -> Pair:
    """Minute `value` of the half day 0..719, often with the part of the day.

    "halb drei" is half an hour before three, not after it.
    """
    (german, english), part = _clock(value), draw.choice(DAY_PARTS)
    return german + part[0], english + part[1]


def _clock(value: int) -> Pair:
    hour, minute = value // 60 or 12, value % 60
    following = hour % 12 + 1

    def de(n: int) -> str:
        return words(n, "de")

    def en(n: int) -> str:
        return words(n, "en")

    if minute == 0:
        return f"{'ein' if hour == 1 else de(hour)} uhr", f"{en(hour)} o'clock"
    if minute == 30:
        return f"halb {de(following)}", f"half past {en(hour)}"
    if minute in (15, 45):
        german, english = "viertel", "a quarter"
    else:
        minutes = minute if minute < 30 else 60 - minute
        # "eins" becomes "eine" before the noun
        german = "eine minute" if minutes == 1 else de(minutes) + ("" if minutes % 5 == 0 else " minuten")
        english = "one minute" if minutes == 1 else en(minutes) + ("" if minutes % 5 == 0 else " minutes")
        if minutes == 25:  # counted from the half hour
            return (
                (f"fünf vor halb {de(following)}", f"twenty-five past {en(hour)}")
                if minute == 25
                else (f"fünf nach halb {de(following)}", f"twenty-five to {en(following)}")
            )
    if minute < 30:
        return f"{german} nach {de(hour)}", f"{english} past {en(hour)}"
    return f"{german} vor {de(following)}", f"{english} to {en(following)}"


def say_money(draw: random.Random, value: int) -> Pair:
    """`value` cents, in euros or (odd amounts of whole units) dollars, as num2words says amounts of money."""
    currency = ("EUR", "USD")[value // 100 % 2]
    return _money(value, "de", currency), _money(value, "en", currency)


def _money(cents: int, language: str, currency: str) -> str:
    from num2words import num2words

    # An integer number of cents would be taken for whole units, so the amount goes in as a decimal number.
    return num2words(cents / 100, lang=language, to="currency", currency=currency).lower()


SPEAKERS: dict[str, Speaker] = {"number": say_number, "date": say_date, "time": say_time, "money": say_money}


def _values(kind: str, draw: random.Random, count: int) -> list[int]:
    """Up to `count` distinct values of a kind in random order, small numbers more often than large ones."""
    if kind == "time":
        return draw.sample(range(720), 720)
    if kind == "date":
        return draw.sample(range(82_000), count)  # the years 1801 to 2025
    found: dict[int, None] = {}
    while len(found) < count:
        digits = draw.randint(1, 5) if kind == "number" else draw.randint(3, 5)
        found[draw.randrange(10**digits)] = None
    return list(found)


def _phrases(kind: str, values: list[int], count: int, draw: random.Random) -> Iterator[Pair]:
    """`count` distinct pairs of a kind, going round its values with another frame each time."""
    seen: set[str] = set()
    for _ in range(20 * len(FRAMES[kind])):
        for value in values:
            german, english = SPEAKERS[kind](draw, value)
            frame = FRAMES[kind][draw.randrange(len(FRAMES[kind]))]
            pair = frame[0].format(german), frame[1].format(english)
            if pair[0] not in seen:
                seen.add(pair[0])
                yield pair
                if len(seen) == count:
                    return
    raise AssertionError(f"{kind}: {len(values)} values give {len(seen)} phrases, {count} are wanted")


def generate(seed: int = SEED, pairs: dict[str, int] | None = None) -> dict[str, list[Pair]]:
    """The splits "train", "valid" and "test" as lists of (German, English), in lower case, not tokenised.

    Deterministic in `seed`. Within each kind the splits share no value: a time of day in test occurs in no training
    phrase (though its words do), nor does an amount, a date or a number.
    """
    sizes = pairs or PAIRS
    total = sum(sizes.values())
    splits: dict[str, list[Pair]] = {split: [] for split in sizes}
    for kind, share in SHARES.items():
        draw = random.Random(f"{seed} {kind}")
        values = _values(kind, draw, round(total * share))
        others = [name for name in SHARES if name != "number"]
        start = 0
        for split in ("test", "valid", "train"):
            # A time serves several phrases, so that a share of the few times would leave too little variety.
            held = 60 if kind == "time" else max(round(len(values) * sizes[split] / total), 1)
            part = values[start:] if split == "train" else values[start : start + held]
            start += held
            count = round(sizes[split] * share)
            if kind == "number":  # takes what rounding leaves
                count = sizes[split] - sum(round(sizes[split] * SHARES[name]) for name in others)
            splits[split] += _phrases(kind, part, count, draw)
    for split, found in splits.items():
        random.Random(f"{seed} {split}").shuffle(found)
    return splits


def tokenise(line: str) -> str:
    """Lower case, with commas, full stops, colons and question and exclamation marks as words of their own."""
    spaced = "".join(f" {c} " if c in ",.:;?!" else c for c in line.lower())
    return " ".join(spaced.split())


def detokenise(line: str) -> str:
    """The inverse of `tokenise` for this data: marks join the word before them."""
    for mark in ",.:;?!":
        line = line.replace(f" {mark}", mark)
    return line


def describe() -> Text:
    """What `pipemare data list` says of the generated phrases."""
    return Text(
        "numerals",
        "German number, date, time and money phrases in English, 20,000 pairs (generated)",
        bitext=lambda root, settings: bitext(settings.bpe_merges or MERGES, settings.pairs),
    )


def bitext(merges: int = MERGES, train: int | None = None) -> Bitext:
    """The phrases as tokenised text, `train` pairs to train on, generated when first asked for.

    Identified by this file's content and the versions of num2words and Babel.
    """
    if train is not None and not 1000 <= train <= MOST:
        raise UserError(f"data.pairs={train}; 1,000 to {MOST:,} different training phrases can be generated")
    sizes = PAIRS | {"train": train or PAIRS["train"]}
    made: dict[str, list[Pair]] = {}

    def lines(split: str, language: str) -> list[str]:
        if not made:
            made.update(generate(pairs=sizes))
        return [tokenise(pair[0 if language == SOURCE else 1]) for pair in made[split]]

    fingerprint = {"generator": sha256(Path(__file__)), "pairs": str(sizes["train"])}
    fingerprint |= {package: version(package) for package in ("num2words", "Babel")}
    return Bitext("numerals", lines, fingerprint, merges, tokeniser="simple")
