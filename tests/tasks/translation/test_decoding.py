"""Search and scores: BLEU against sacrebleu's command line, and sentences that are out of the ordinary."""

import json
import subprocess
import sys

import pytest
import torch

from pipemare_exp.data import bitext
from pipemare_exp.data.tokenisers import Tokeniser
from pipemare_exp.tasks import decoding

# fairseq's decoder gives torch its causal mask as numbers and its padding mask as booleans.
pytestmark = pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask and attn_mask")


def sacrebleu_cli(hypotheses, references, *options):
    command = [sys.executable, "-m", "sacrebleu", str(references), "-i", str(hypotheses), "-m", "bleu", "-f", "json",
               "-w", "6", *options]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return json.loads(done.stdout)


HYPOTHESES = ["the train , anna &apos;s , leaves at half past two .", "she spent twenty-three euro", "", "a b c"]
REFERENCES = ["the train , anna &apos;s , leaves at half past three .", "she spent thirty-two euro yesterday",
              "that is all", "a b c d e"]  # fmt: skip


@pytest.mark.parametrize("raw", [None, ["The train, Anna's, leaves at half past three.", "x", "y", "A b c d e"]])
def test_scores_are_those_of_sacrebleus_command_line(tmp_path, raw):
    tokeniser = Tokeniser("moses", "en")
    scores = decoding.score(HYPOTHESES, REFERENCES, tokeniser, raw)
    decoding.write(tmp_path / "hyp", HYPOTHESES, REFERENCES, tokeniser, raw)
    tokenised = sacrebleu_cli(tmp_path / "hyp.tok", tmp_path / "hyp.ref.tok", "-tok", "none", "-lc", "--force")
    assert scores.tokenised_bleu == pytest.approx(tokenised["score"], abs=1e-5)
    detokenised = sacrebleu_cli(tmp_path / "hyp", tmp_path / "hyp.ref", "-lc")
    assert scores.sacrebleu == pytest.approx(detokenised["score"], abs=1e-5)
    assert scores.signature == detokenised["signature"]
    assert "tok:13a" in scores.signature and "case:lc" in scores.signature
    assert abs(scores.sacrebleu - scores.tokenised_bleu) > 0.1, "the two would not be told apart"
    text = (tmp_path / "hyp").read_text().splitlines()
    assert text[0] == "the train, anna's, leaves at half past two." and text[2] == ""


def test_tokenised_score_ignores_case_and_is_perfect_for_the_reference():
    assert decoding.tokenised_bleu([r.upper() for r in REFERENCES], REFERENCES) == pytest.approx(100.0)


def trained(task, steps=150):
    """A model that has learned the small corpus a little, by plain training."""
    model = task.build_model().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    epoch = done = 0
    while done < steps:
        for minibatch in task.minibatches(epoch):
            optimizer.zero_grad()
            for microbatch in minibatch:
                if microbatch is not None:
                    task.loss(model, microbatch).backward()
            optimizer.step()
            done += 1
        epoch += 1
    return model.eval()


@pytest.fixture(scope="module")
def learned(task_of):
    task = task_of({"width": 32, "dropout": 0.0}, microbatches=1, max_tokens=1000)
    return task, trained(task)


def test_training_raises_bleu(learned, task_of):
    task, model = learned
    with torch.no_grad():
        before, after = task.evaluate(task.build_model().eval()), task.evaluate(model)
    assert after["loss"] < before["loss"] - 1
    assert after["bleu"] > before["bleu"] + 5


def test_greedy_search_is_the_argmax_of_the_model(learned):
    """Beam 1 against a loop that feeds the whole prefix again for every word."""
    task, model = learned
    pairs = task.split("valid")
    sources = [pairs.src[k] for k in range(12)]
    found = decoding.search(model, sources, task.source, task.target, beam=1)
    eos = task.target.eos()
    for source, hypothesis in zip(sources, found, strict=True):
        words = [eos]
        with torch.no_grad():
            while len(words) < int(len(source) * decoding.MAX_RATIO) + decoding.MAX_EXTRA:
                logits = model(source[None].long(), torch.tensor([len(source)]), torch.tensor([words]))[0, -1]
                logits[task.target.pad()] = -torch.inf
                if len(words) == 1:
                    logits[eos] = -torch.inf  # the search asks for one word at least
                words.append(int(logits.argmax()))
                if words[-1] == eos:
                    break
        expected = task.target.string(torch.tensor(words[1:])).replace("@@ ", "").removesuffix("@@")
        assert hypothesis.removesuffix("@@") == expected


def test_batching_does_not_change_translations(learned, monkeypatch):
    task, model = learned
    together = task.hypotheses(model, "test", 4)
    monkeypatch.setattr(decoding, "TOKENS_IN_FLIGHT", 1)  # every sentence by itself, or with others of its length
    assert task.hypotheses(model, "test", 4) == together
    assert task.hypotheses(model, "test", 4, [5, 2]) == [together[5], together[2]]


def test_sentences_out_of_the_ordinary(learned, task_of):
    task, model = learned
    lines = ["die zahl dreiundzwanzig", "", "   ", "漢字 ☃ die zahl 7", "die zahl " * 2000, "DIE ZAHL dreiundzwanzig"]
    found = task.translate(model, lines, beam=2)
    assert len(found) == len(lines)
    assert found[1] == found[2] == ""
    assert found[0] and found[0] == found[5], "case is not part of the input"
    assert found[3] and found[4]
    assert all("@@" not in line[:-2] and "</s>" not in line for line in found)


def test_a_source_longer_than_the_positions_is_cut(learned):
    task, model = learned
    eos = task.source.eos()
    long = torch.tensor([4, 5, 6, 7] * 400 + [eos])
    cut = torch.cat([long[:1023], long[-1:]])
    assert decoding.search(model, [long], task.source, task.target, 1) == decoding.search(
        model, [cut], task.source, task.target, 1
    )


def test_a_model_that_is_not_finite_scores_nothing(learned):
    task, _ = learned
    model = task.build_model().eval()
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
        scores = task.evaluate(model)
    assert scores["bleu"] == 0.0 and scores["loss"] != scores["loss"]


def test_validation_bleu_of_some_sentences_says_so(task_of, learned):
    _, model = learned
    task = task_of({"width": 32, "dropout": 0.0}, valid_sentences=10)
    assert task.notes["valid_bleu"] == "10 of 40 sentences"
    hypotheses = task.hypotheses(model, "valid", 1, range(0, 40, 4))
    references = task.data.tokenised("valid", "en")[::4]
    assert task.evaluate(model)["bleu"] == decoding.tokenised_bleu(hypotheses, references)


def test_final_test_scores_all_of_test_and_writes_it(learned, tmp_path, task_of):
    task, model = learned
    scores = task.test(model, output=tmp_path / "hyp.txt")
    assert set(scores) == {"tokenised_bleu", "sacrebleu", "signature"}
    assert bitext.read_lines(tmp_path / "hyp.txt.ref.tok") == task.data.tokenised("test", "en")
    assert len(bitext.read_lines(tmp_path / "hyp.txt")) == 40
    assert sacrebleu_cli(tmp_path / "hyp.txt", tmp_path / "hyp.txt.ref", "-lc")["score"] == pytest.approx(
        scores["sacrebleu"], abs=1e-5
    )
    assert task_of({"width": 32}, score_test=False).test(model) is None


def test_averaging_takes_the_mean_of_the_weights(task_of, tmp_path):
    task = task_of({"tying": "decoder"})
    paths, models = [], []
    for k in range(3):
        model = task.build_model()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(k)
        torch.save(model.state_dict(), tmp_path / f"{k}.pt")
        paths.append(tmp_path / f"{k}.pt")
        models.append(model)
    mean = task.averaged(paths)
    for name, weight in mean.named_parameters():
        torch.testing.assert_close(weight, models[1].get_parameter(name))
    assert mean.decoder.output_projection.weight is mean.decoder.embed_tokens.weight
