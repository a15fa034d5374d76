"""Generated phrases, BPE, and the cache of binarised text."""

import subprocess
import sys

import pytest
import torch

from pipemare_exp.data import bitext, bpe, numerals
from pipemare_exp.data.tokenisers import Tokeniser
from pipemare_exp.errors import UserError
from pipemare_exp.models import fairseq_door as door


def test_order_of_words_changes():
    class First:
        """Draws the first of everything."""

        random = staticmethod(lambda: 0.9)
        choice = staticmethod(lambda options: options[0])

    assert numerals.say_number(First, 23) == ("dreiundzwanzig", "twenty-three")
    assert numerals.say_time(First, 2 * 60 + 30) == ("halb drei", "half past two")
    assert numerals.say_time(First, 12 * 60 - 15) == ("viertel vor zwölf", "a quarter to twelve")
    assert numerals.say_time(First, 25) == ("fünf vor halb eins", "twenty-five past twelve")
    assert numerals.say_time(First, 60) == ("ein uhr", "one o'clock")
    assert numerals.say_time(First, 61) == ("eine minute nach eins", "one minute past one")
    day = 31 + 28 + 22  # 23 March 1801, counted from 1 January
    german, english = numerals.say_date(First, day)
    assert german == "dreiundzwanzigsten märz achtzehnhunderteins"
    assert english == "march twenty-third, eighteen oh-one"
    assert numerals.say_money(First, 1250) == ("zwölf euro und fünfzig cent", "twelve euro, fifty cents")


def test_every_time_of_day_has_one_translation():
    class First:
        choice = staticmethod(lambda options: options[0])

    said = [numerals.say_time(First, minute) for minute in range(720)]
    assert len({german for german, _ in said}) == len({english for _, english in said}) == 720


def test_generation_is_deterministic_and_complete():
    sizes = {"train": 1003, "valid": 50, "test": 50}
    first, second = numerals.generate(pairs=sizes), numerals.generate(pairs=sizes)
    assert first == second and {split: len(pairs) for split, pairs in first.items()} == sizes
    assert numerals.generate(seed=1, pairs=sizes) != first
    german = [german for pairs in first.values() for german, _ in pairs]
    assert len(set(german)) == len(german)


def test_splits_share_no_value(monkeypatch):
    """The speakers are asked for each value; no value of test or valid is asked for in train."""
    asked = []
    for kind in numerals.SPEAKERS:
        monkeypatch.setitem(
            numerals.SPEAKERS, kind, lambda draw, value, k=kind: asked.append((k, value)) or (f"{k}{value}",) * 2
        )
    made = numerals.generate(pairs={"train": 2000, "valid": 100, "test": 100})
    marks = {f"{kind}{value}" for kind, value in asked}
    cores = {
        split: {word for german, _ in pairs for word in german.replace(",", "").split() if word in marks}
        for split, pairs in made.items()
    }
    assert all(cores.values())
    assert not cores["train"] & (cores["test"] | cores["valid"]) and not cores["test"] & cores["valid"]


def test_default_sizes():
    made = numerals.generate()
    assert {split: len(pairs) for split, pairs in made.items()} == {"train": 20_000, "valid": 500, "test": 500}


def test_simple_tokeniser_and_back():
    line = "Am Montag, dem dritten Mai"
    words = Tokeniser("simple", "de").words(line)
    assert words == "am montag , dem dritten mai"
    assert Tokeniser("simple", "de").text(words) == line.lower()


def test_moses_tokeniser_and_back():
    english = Tokeniser("moses", "en")
    words = "it &apos;s mr. smith &apos;s &lt; b &gt; , isn &apos;t it ?"
    assert english.words("It's Mr. Smith's <b>, isn't it?") == words
    assert english.text("it &apos;s 5 % , isn &apos;t it ?") == "it's 5%, isn't it?"
    with pytest.raises(UserError, match="moses"):
        Tokeniser("mose", "en")


def test_codes_are_those_of_subword_nmt_on_running_text(phrases, tmp_path):
    lines = [side for pair in phrases["train"] for side in pair]
    bitext.write_lines(tmp_path / "text", lines)
    start = "from subword_nmt.subword_nmt import main; main()"
    command = [sys.executable, "-X", "utf8", "-c", start, "learn-bpe", "-s", "120"]
    with open(tmp_path / "text", encoding="utf-8") as text:
        theirs = subprocess.run(command, stdin=text, capture_output=True, check=True, timeout=120).stdout.decode()
    assert bpe.learn(lines, 120) == theirs
    encode = bpe.Encoder(theirs)
    assert all(bpe.undo(encode(line)) == line for line in lines)
    assert any("@@ " in encode(line) for line in lines)


def test_binarised_text_is_the_text(small, phrases):
    source, target = (door.Dictionary.load(str(small.folder / f"dict.{side}.txt")) for side in ("de", "en"))
    for split, pairs in phrases.items():
        loaded = door.load_split(small.prefix(split), "de", "en", source, target)
        assert len(loaded) == len(pairs) == small.manifest["pairs"][split]
        for index in (0, len(pairs) - 1):
            german, english = pairs[index]
            if split == "train":  # valid and test may have unknown subwords
                assert bpe.undo(source.string(loaded[index]["source"])) == german
                assert bpe.undo(target.string(loaded[index]["target"])) == english
            assert int(loaded[index]["target"][-1]) == target.eos()
    assert small.tokenised("test", "en") == [english for _, english in phrases["test"]]
    assert small.raw_references() is None


def test_cache_is_used_again_and_made_anew_when_an_input_changes(bitext_of, tmp_path):
    calls = []
    text = bitext_of()

    def counted(split, language):
        calls.append(split)
        return text.lines(split, language)

    first = bitext.binarise(bitext_of(lines=counted), tmp_path)
    made = len(calls)
    assert made == 6
    again = bitext.binarise(bitext_of(lines=counted), tmp_path)
    assert len(calls) == made and again == first
    changed = bitext.binarise(bitext_of(lines=counted, fingerprint={"text": "2"}), tmp_path)
    assert len(calls) == 2 * made and changed.folder != first.folder and first.folder.exists()
    shared = bitext.binarise(bitext_of(), tmp_path, joint_dictionary=True)
    assert shared.folder != first.folder
    sizes = shared.manifest["dictionary"]
    assert sizes["de"] == sizes["en"] > max(first.manifest["dictionary"].values())
    assert (shared.folder / "dict.de.txt").read_bytes() == (shared.folder / "dict.en.txt").read_bytes()


def test_a_failure_leaves_nothing_behind(bitext_of, tmp_path):
    text = bitext_of()

    def uneven(split, language):
        return text.lines(split, language)[: 3 if (split, language) == ("valid", "de") else None]

    with pytest.raises(UserError, match="valid has 3 lines in de and 40 in en"):
        bitext.binarise(bitext_of(lines=uneven), tmp_path)
    assert list((tmp_path / "binarised").iterdir()) == []


def test_a_damaged_folder_says_what_to_do(bitext_of, tmp_path):
    made = bitext.binarise(bitext_of(), tmp_path)
    (made.folder / bitext.MANIFEST).write_text("{")
    with pytest.raises(UserError, match="delete it"):
        bitext.binarise(bitext_of(), tmp_path)


def test_given_codes_are_applied_not_learned(bitext_of, small, tmp_path):
    codes = tmp_path / "code"
    codes.write_text("#version: 0.2\nu n\nun d\n")
    made = bitext.binarise(bitext_of(codes=codes, fingerprint={"text": "1", "code": "x"}), tmp_path)
    assert (made.folder / "code").read_text() == codes.read_text()
    words = (made.folder / "dict.de.txt").read_text()
    assert "und@@ " in words and max(len(line.split()[0].replace("@@", "")) for line in words.splitlines()[:40]) <= 3


def test_lines_are_cut_at_line_feeds_only(tmp_path):
    (tmp_path / "t").write_bytes("a\u2028b\x85c\r\n\nlast".encode())
    assert bitext.read_lines(tmp_path / "t") == ["a\u2028b\x85c", "", "last"]
    (tmp_path / "t").write_bytes(b"a\xff\n")
    with pytest.raises(UserError, match="UTF-8"):
        bitext.read_lines(tmp_path / "t")


@pytest.mark.parametrize("pairs", [999, 40_001])
def test_too_few_or_too_many_phrases(pairs):
    with pytest.raises(UserError, match=f"data.pairs={pairs}"):
        numerals.bitext(train=pairs)


def test_batches_hold_every_pair_within_max_tokens(task_of):
    task = task_of(max_tokens=300)
    sizes = task.split("train").sizes.max(1)
    indices = sorted(int(k) for batch in task.batches for k in batch)
    assert indices == list(range(300)) and task.notes == {}
    assert all(len(batch) * sizes[batch].max() <= 300 for batch in task.batches)
    spread = [int(sizes[batch].max() - sizes[batch].min()) for batch in task.batches]
    assert sum(spread) / len(spread) < 8, "sentences of a batch have unlike lengths"


def test_order_depends_on_seed_and_epoch_alone_and_starts_anywhere(task_of):
    def ids(minibatches):
        return [[None if m is None else m["id"].tolist() for m in minibatch] for minibatch in minibatches]

    task = task_of(seed=4)
    first = ids(task.minibatches(1))
    assert ids(task_of(seed=4).minibatches(1)) == first
    assert ids(task_of(seed=4).minibatches(1, start=5)) == first[5:]
    assert ids(task.minibatches(0)) != first != ids(task_of(seed=5).minibatches(1))
    assert sorted(k for minibatch in first for m in minibatch if m for k in m) == list(range(300))


def test_microbatches_are_balanced_by_target_tokens(task_of):
    from pipemare_exp.tasks.translation import balanced

    assert balanced([5, 1, 1, 1, 1, 1], 2) == [[0], [1, 2, 3, 4, 5]]
    assert balanced([2, 2], 4) == [[0], [1], [], []]
    task = task_of(microbatches=4)
    for minibatch in task.minibatches(0):
        tokens = [m["ntokens"] for m in minibatch if m]
        assert {m["minibatch_tokens"] for m in minibatch if m} == {sum(tokens)}
        assert max(tokens) - min(tokens) <= max(int(m["target"].ne(1).sum(1).max()) for m in minibatch if m)


def test_long_pairs_are_left_out_and_said(task_of):
    task = task_of(max_length=12)
    kept = sum(len(batch) for batch in task.batches)
    sizes = task.split("train").sizes.max(1)
    assert kept == int((sizes <= 12).sum()) < 300
    assert task.notes["left_out"] == f"{300 - kept:,} training pairs of more than 12 subwords"
    with pytest.raises(UserError, match="data.max_length=1"):
        task_of(max_length=1)


def test_a_subset_says_so(bitext_of, tmp_path, task_of):
    part = bitext.binarise(bitext_of(full_train=160_239), tmp_path)
    task = task_of(data=part)
    assert task.notes["train"] == "300-pair subset" and task.subset == 300
    whole = bitext.binarise(bitext_of(full_train=300, fingerprint={"text": "3"}), tmp_path)
    task = task_of(data=whole)
    assert "train" not in task.notes and task.subset is None


def test_samples_are_moved_not_changed(task_of):
    sample = task_of().split_minibatch([0, 1, 2, 3])[0]
    moved = door.to_device(sample, torch.device("meta"))
    assert moved["net_input"]["src_tokens"].device.type == "meta"
    assert sample["net_input"]["src_tokens"].device.type == "cpu" and moved["ntokens"] == sample["ntokens"]
