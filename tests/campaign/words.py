"""Words, numbers and nonsense for command lines."""

from __future__ import annotations

from random import Random

WORDS = (
    "digits", "cifar10", "numerals", "multi30k", "iwslt14", "gpipe", "pipemare", "t1_t2", "t1+t2", "hogwild",
    "resnet50",
    "resnet20", "digits_resnet", "transformer_tiny", "gpt_tiny", "fp32", "bf16", "cpu", "cuda", "demo", "laptop",
    "paper",
    "ablation", "ablation_digits", "hogwild_digits", "stages", "table1", "table2_digits", "theory_heatmap", "figure9",
    "fork", "basic", "joblib", "partition", "_target_", "no-such-run", ".", "..", "../..", "/", "/dev/null",
    "/dev/full",
    "/proc/self/mem", "/nonexistent/a/b", "", " ", "-", "--", "-1", "nan", "null", "true", "[]", "{}", "a=b", "=",
    "x" * 300,
    "é", "日本", "a\nb", "\x1b[31mred", "\udcff", "%s", "${oc.env:HOME}", "*", "~", "~nobody", "'", '"', "\\",
)  # fmt: skip
NUMBERS = (
    "0", "1", "2", "3", "7", "8", "64", "1000", "-1", "-0", "100000", "2147483648", "99999999999",
    "99999999999999999999",
    "1" + "0" * 400, "0.5", "1.0", "1e3", "1e300", "1e-300", "nan", "inf", "-inf", "1_000", "0x10", "٣", "true", "",
    "one",
)  # fmt: skip
PIECES = (
    "=", "==", ".", "..", "/", "[", "]", "{", "}", "(", ")", ",", ":", "'", '"', "\\", "$", "${", "}", "~", "+", "++",
    "@", "!",
    "*", "&", "|", ";", "%", "#", "?", " ", "\t", "\n", "\x1b[2J", "\x7f", "\u202e", "é", "💥", "\ud800", "null",
    "true", "1e5",
    "seed", "task", "method", "optimizer.rate", "pipeline.stages", "hydra", "hydra.run.dir", "_target_", "os.system",
    "--",
    "--runs", "--json", "-q", "choice(", "range(", "glob(", "sort(", "int(", "!!python/object/apply:os.system",
    "oc.env:HOME",
)  # fmt: skip


def word(random: Random) -> str:
    """A name that means something somewhere, or a text that means nothing."""
    return random.choice(WORDS) if random.random() < 0.85 else nonsense(random)


def number(random: Random) -> str:
    """A number of any size, or what only looks like one."""
    if random.random() < 0.3:
        return str(random.randint(1, 40))
    return random.choice(NUMBERS)


def nonsense(random: Random) -> str:
    """A few pieces of the grammars that arguments pass through, in no order."""
    if random.random() < 0.03:
        return random.choice(("[", "{a:", "(", "'", "a.", "${")) * random.choice((50, 2000))
    return "".join(random.choice(PIECES) for _ in range(random.randint(1, 8)))
