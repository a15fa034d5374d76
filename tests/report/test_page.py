"""`pipemare report` on real tiny runs and a few broken ones: what the page says, and what a browser makes of it."""

from __future__ import annotations

import base64
import csv
import io
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from pipemare_exp import cli
from pipemare_exp.analysis import comparison, rows
from pipemare_exp.data import TASKS
from tests.experiment.run_folders import write_run
from tests.report import headless_chromium

COMMON = [
    "scale=demo", "max_steps=4", "epochs=1", "data.batch_size=256", "pipeline.stages=4", "pipeline.microbatches=2",
    "model.width=4", "tracking=none", "threads=1", "progress=none", "device=cpu",
]  # fmt: skip
RUNS = [
    *(("gpipe", seed, []) for seed in (0, 1, 2)),
    *((method, 0, []) for method in ("async", "t1", "t2", "t1_t2", "pipemare")),
    ("async", 1, ["optimizer.rate=1e8"]),
]
NAMES = ["schedules", "table1", "ablation", "table3", "hogwild"]
needs_chromium = pytest.mark.skipif(headless_chromium.executable() is None, reason="no Chromium on this machine")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Nine real runs, one of which diverges, and one each that failed, was interrupted, is damaged."""
    root = tmp_path_factory.mktemp("report") / "runs"
    for method, seed, more in RUNS:
        overrides = ["task=digits", f"method={method}", f"seed={seed}", *COMMON, *more]
        assert cli.main(["train", *overrides, "--runs", str(root)]) == 0
    failed = write_run(root, "t1", 7, outcome="failed", name="a-failed-run")
    (failed.path / "status.json").write_text(json.dumps({"state": "failed", "error": "OSError: <b>no</b> disk & more"}))
    write_run(root, "t1", 8, outcome="interrupted", name="an-interrupted-run", notes={"train": "10-image subset"})
    (write_run(root, "t1", 9, name="a-damaged-run").path / "result.json").write_text('{"outcome": "fini')
    return root


@pytest.fixture(scope="module")
def page(runs) -> Path:
    """The page of a few figures and tables."""
    out = runs.parent / "out" / "page.html"
    assert cli.main(["report", *NAMES, "--runs", str(runs), "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def tree(page) -> ElementTree.Element:
    """Parsing as XML fails on any element that is not closed or attribute that is not quoted."""
    return ElementTree.parse(page).getroot()


def text_of(element: ElementTree.Element | None) -> str:
    assert element is not None
    return " ".join("".join(element.itertext()).split())


def section(tree: ElementTree.Element, name: str) -> ElementTree.Element:
    (found,) = [one for one in tree.iter("section") if one.get("aria-labelledby") == name]
    return found


def rows_of(table: ElementTree.Element) -> list[list[str]]:
    return [[text_of(cell) for cell in row if cell.tag in ("td", "th")] for row in table.iter("tr")]


def uri_bytes(uri: str | None) -> bytes:
    assert uri is not None and uri.startswith("data:")
    return base64.b64decode(uri.partition(",")[2], validate=True)


def test_identifiers_are_distinct_and_every_link_leads_somewhere(tree):
    names = [one.get("id") for one in tree.iter() if one.get("id")]
    assert len(names) == len(set(names))
    targets = [one.get("href", "") for one in tree.iter("a")]
    assert {one[1:] for one in targets if one.startswith("#")} <= set(names)
    assert [one for one in targets if not one.startswith(("#", "data:"))] == []


def test_everything_is_in_the_file(tree):
    for one in tree.iter():
        assert one.tag not in ("script", "iframe", "object", "embed")
        assert (one.get("src") or "data:").startswith("data:")
        assert not any(name.startswith("on") for name in one.attrib)
    assert [one.get("href") for one in tree.iter("link")] == ["data:,"]
    style = text_of(tree.find("head/style"))
    assert "url(" not in style and "@import" not in style


def test_comparison_is_that_of_the_command(tree, runs):
    (table,) = section(tree, "comparison").iter("table")
    head, *lines = rows_of(table)
    expected = comparison.compare(rows.read(runs), "digits")
    assert [line[0] for line in lines] == [row["method"] for row in expected]
    for line, row in zip(lines, expected, strict=True):
        shown = dict(zip(head, line, strict=True))
        assert shown["verdict"] == row["verdict"]
        assert shown["last"].split(" ")[0] == ("-" if row["last_mean"] is None else f"{row['last_mean']:.1f}")


def test_figures_and_tables_that_are_ready_are_on_it_and_the_others_are_named(tree):
    items = [one.get("aria-labelledby") for one in tree.iter("article")]
    assert items == ["schedules", "table1", "ablation_digits_demo", "table3_digits_demo"]
    lines = rows_of(section(tree, "missing"))[1:]
    missing = {line[0]: line for line in lines}
    assert missing["hogwild_digits"][2] == "pipemare sweep hogwild_digits scale=demo"
    assert missing["table3_iwslt14"][2] == "pipemare sweep ablation_iwslt14 scale=laptop"
    others = len(TASKS) - 1
    assert len(lines) == others + others + len(TASKS)  # digits have the ablation and table 3


def test_images_say_what_they_show(tree):
    images = list(tree.iter("img"))
    assert len(images) == 2
    assert "T1, T2 and T3" in images[1].get("alt", "") and "digits, scale demo" in images[1].get("alt", "")
    for one in images:
        assert b"<svg" in uri_bytes(one.get("src"))


def test_a_table_has_the_cells_of_its_file(tree):
    (article,) = [one for one in tree.iter("article") if one.get("aria-labelledby") == "table3_digits_demo"]
    links = {one.get("download"): one.get("href") for one in article.iter("a") if one.get("download")}
    assert set(links) == {f"table3_digits_demo.{ending}" for ending in ("md", "tex", "csv")}
    numbers = list(csv.DictReader(io.StringIO(uri_bytes(links["table3_digits_demo.csv"]).decode())))
    _, *lines = rows_of(next(article.iter("table")))
    assert len(numbers) == len(lines) == 6
    for line, row in zip(lines, numbers, strict=True):
        assert line[2].split(" ")[0] == f"{float(row['best_mean']):.1f}"


def test_what_stands_behind_a_figure(tree, runs):
    (article,) = [one for one in tree.iter("article") if one.get("aria-labelledby") == "ablation_digits_demo"]
    text = text_of(article)
    assert "pipemare figures ablation_digits --scale demo --runs runs" in text
    assert "pipemare sweep ablation_digits scale=demo" in text
    lines = rows_of(list(article.iter("table"))[-1])[1:]
    assert len(lines) == 8 and {line[1] for line in lines} == {"finished"}
    for name, _, command, _, differing in lines:
        meta = json.loads((runs / name / "meta.json").read_text())
        assert command == meta["command"]
        assert "method.label=" in differing and "optimizer.rate" not in differing
    assert "optimizer.rate=" in text


def test_doubts_name_their_cases(tree, runs):
    found = {text_of(one.find("h3")): [text_of(case) for case in one.iter("li")] for one in section(tree, "doubts")
             if one.tag == "div"}  # fmt: skip
    (diverged,) = found["Diverged runs"]
    assert "digits-async-demo-s1" in diverged and "at step" in diverged
    assert found["Failed runs"] == ["a-failed-run: OSError: <b>no</b> disk & more"]
    (interrupted,) = found["Interrupted runs, and runs not yet at their end"]
    assert interrupted.startswith("an-interrupted-run: interrupted at step 20")
    (damaged,) = found["Damaged run folders"]
    assert damaged.startswith("a-damaged-run: ") and "not JSON" in damaged
    few = " ".join(found["Few seeds"])
    assert "digits, scale demo: t2: 1 finished" in few and "gpipe" not in few
    assert found["Subsets and other notes on the data"] == ["digits, scale demo: train: 10-image subset"]
    # One evaluation a run: nothing was picked.
    assert found["Metrics picked on the test set"] == []


def test_versions_and_machine_of_the_runs_and_of_the_page(tree):
    text = text_of(section(tree, "environments"))
    for wanted in ("torch ", "numpy ", "processor", "cores", "This page"):
        assert wanted in text


def test_the_page_of_committed_rows_says_the_same_of_ended_runs(runs, tree, tmp_path):
    assert cli.main(["figures", "--runs", str(runs), "--rows", str(tmp_path / "rows")]) == 0
    out = tmp_path / "page.html"
    assert cli.main(["report", "table3", "--runs", str(tmp_path / "rows"), "--scale", "demo", "--out", str(out)]) == 0
    again = ElementTree.parse(out).getroot()

    def table3(root: ElementTree.Element) -> list[list[str]]:
        (one,) = [one for one in root.iter("article") if one.get("aria-labelledby") == "table3_digits_demo"]
        return rows_of(next(one.iter("table")))

    assert table3(again) == table3(tree)


def test_without_runs_the_page_says_what_makes_some(tmp_path, capsys):
    (tmp_path / "none").mkdir()
    out = tmp_path / "page.html"
    assert cli.main(["report", "ablation_digits", "--runs", str(tmp_path / "none"), "--out", str(out)]) == 0
    assert "0 figures and tables, 1 not ready" in capsys.readouterr().out
    text = text_of(ElementTree.parse(out).getroot())
    assert "pipemare sweep ablation_digits scale=demo" in text and "pipemare demo" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ablatoin"], 'did you mean "ablation"'),
        (["--scale", "lptop"], 'did you mean "laptop"'),
        (["--runs", "nowhere"], "no such folder"),
    ],
)
def test_mistakes_are_told_before_anything_is_drawn(arguments, said, capsys, tmp_path):
    assert cli.main(["report", *arguments, "--out", str(tmp_path / "page.html")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


@needs_chromium
def test_a_real_browser_decodes_every_image_asks_for_nothing_and_complains_of_nothing(page, tree, tmp_path):
    with headless_chromium.chromium(tmp_path / "profile") as browser:
        for width in (1200, 390):
            browser.open(page, width)
            images = browser.images()
            assert len(images) == len(list(tree.iter("img"))) and all(one["width"] > 0 for one in images)
            assert browser.requests() == [page.resolve().as_uri()]
            assert browser.complaints() == []
            # Wide tables and figures scroll on their own; the page never does.
            assert browser.value("document.documentElement.scrollWidth") <= width


@needs_chromium
def test_that_browser_does_see_a_fault(tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text(
        '<img src="data:image/png;base64,AAAA" alt="torn"/><img src="http://example.invalid/x.png" alt="away"/>'
        "<script>console.error('oh')</script>"
    )
    with headless_chromium.chromium(tmp_path / "profile") as browser:
        browser.open(bad)
        assert [one["width"] for one in browser.images()] == [0, 0]
        assert "http://example.invalid/x.png" in browser.requests()
        assert any("oh" in one for one in browser.complaints())
