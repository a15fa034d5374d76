"""The commands on a short translation run: train, eval with its files, translate."""

import io
import json

import pytest

from pipemare_exp import cli, methods
from pipemare_exp.data import bitext
from pipemare_exp.errors import UserError
from pipemare_exp.experiment.config.load import load
from pipemare_exp.experiment.config.resolve import label

pytestmark = pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask and attn_mask")

SMALL = ["data.pairs=1000", "data.bpe_merges=100", "model.layers=1", "model.width=16", "model.heads=2",
         "data.max_tokens=800", "max_steps=6", "threads=1", "tracking=none", "device=cpu", "evaluation.average=2",
         "evaluation.every_epochs=1"]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    overrides = [*SMALL, f"data.root={folder / 'data'}"]
    assert cli.main(["train", "task=numerals", "method=t1_t2", *overrides, "--runs", str(folder / "runs")]) == 0
    (made,) = (folder / "runs").iterdir()
    return made


def test_result_names_both_scores(run):
    result = json.loads((run / "result.json").read_text())
    assert result["task"] == "numerals" and result["metric"] == "bleu" and result["method"] == "t1+t2"
    assert set(result["test"]) == {"tokenised_bleu", "sacrebleu", "signature"}
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["split"] for row in rows if row["kind"] == "eval"] == ["valid"]


def test_eval_gives_the_logged_number_and_writes_hypotheses(run, tmp_path, capsys):
    assert cli.main(["eval", str(run), "--beam", "2", "--output", str(tmp_path / "hyp.txt"), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["bleu"] == scores["logged"] and scores["split"] == "valid"
    assert set(scores["test"]) == {"tokenised_bleu", "sacrebleu", "signature"}
    assert all(len(bitext.read_lines(tmp_path / f"hyp.txt{end}")) == 500 for end in ("", ".ref", ".tok", ".ref.tok"))


@pytest.mark.parametrize("average", [[], ["--average"]])
def test_translate_gives_a_line_for_a_line(run, capsys, monkeypatch, average):
    monkeypatch.setattr("sys.stdin", io.StringIO("die zahl drei\n\num halb vier"))
    assert cli.main(["translate", str(run), "--beam", "1", *average]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert len(lines) == 4 and lines[1] == lines[3] == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["translate", "RUN", "--beam", "0"], "--beam: 0: it must be a whole number from 1"),
        (["eval", "RUN", "--beam", "0"], "--beam: 0: it must be a whole number from 1"),
        (["translate", "nowhere"], "nowhere"),
        (["train", "task=numerals", "method=gpipe", "model=resnet20"], "model.name=resnet20"),
        (["train", "task=numerals", "method=gpipe", "data.pairs=5", "tracking=none"], "data.pairs=5"),
        (["train", "task=iwslt14", "method=gpipe", "data.root=/nonexistent", "tracking=none"], "prepare iwslt14"),
    ],
)
def test_mistakes_end_with_2_and_a_line(run, capsys, arguments, words):
    assert cli.main([str(run) if word == "RUN" else word for word in arguments]) == 2
    error = capsys.readouterr().err
    assert words in error and len(error.splitlines()) <= 2


@pytest.mark.parametrize("task", ["numerals", "iwslt14", "multi30k"])
@pytest.mark.parametrize("method", ["gpipe", "pipedream", "async", "t1", "t2", "t1_t2", "pipemare"])
def test_every_cell_composes(task, method):
    cfg = load([f"task={task}", f"method={method}"])
    assert cfg.task.name == cfg.data.name == task and methods.file_of(label(cfg.method)) == method
    assert cfg.optimizer.betas == (0.9, 0.98) and cfg.task.label_smoothing == 0.1


def test_the_papers_recipe_is_the_published_one():
    cfg = load(["task=iwslt14", "method=pipemare", "scale=paper"])
    assert (cfg.optimizer.rate, cfg.schedule.warmup_steps, cfg.data.max_tokens) == (5e-4, 4000, 4096)
    assert (cfg.model.dropout, cfg.optimizer.weight_decay, cfg.model.tying) == (0.3, 1e-4, "none")
    with pytest.raises(UserError):
        load(["task=iwslt14", "method=pipemare", "model.tying=some"])
