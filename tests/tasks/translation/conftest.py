"""A small binarised corpus of generated phrases, and tasks over it."""

import pytest

SIZES = {"train": 300, "valid": 40, "test": 40}


@pytest.fixture(scope="session")
def phrases():
    """{split: [(German, English)]}, tokenised."""
    from pipemare_exp.data import numerals

    made = numerals.generate(pairs=SIZES)
    return {split: [(numerals.tokenise(a), numerals.tokenise(b)) for a, b in pairs] for split, pairs in made.items()}


@pytest.fixture(scope="session")
def bitext_of(phrases):
    """A `Bitext` over the phrases; keyword arguments replace its fields."""
    from pipemare_exp.data.bitext import Bitext

    def make(**changes):
        fields = {
            "name": "small",
            "lines": lambda split, language: [pair[language == "en"] for pair in phrases[split]],
            "fingerprint": {"text": "1"},
            "merges": 150,
            "tokeniser": "simple",
        }
        return Bitext(**fields | changes)

    return make


@pytest.fixture(scope="session")
def small(bitext_of, tmp_path_factory):
    from pipemare_exp.data import bitext

    return bitext.binarise(bitext_of(), tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def joint(bitext_of, tmp_path_factory):
    """The same with one dictionary for both languages."""
    from pipemare_exp.data import bitext

    return bitext.binarise(bitext_of(), tmp_path_factory.mktemp("joint"), joint_dictionary=True)


@pytest.fixture(scope="session")
def task_of(small):
    """Tasks over the small corpus with a 1+1-layer model of width 16; keyword arguments replace what they name."""
    from pipemare_exp.tasks.translation import Translation

    def make(model=None, data=small, **options):
        sizes = {"layers": 1, "width": 16, "heads": 2, "dropout": 0.1} | (model or {})
        return Translation("numerals", data, **{"model": sizes, "max_tokens": 400, "microbatches": 4} | options)

    return make
