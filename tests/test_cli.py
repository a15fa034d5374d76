"""The command line: exit codes, one-line errors, and what an image run does not import."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipemare_exp import cli, environment

TINY = ["model.width=2", "pipeline.stages=4", "max_steps=2", "tracking=none"]


def python(code: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        timeout=120,
    )


def test_help_lists_the_commands_and_imports_no_torch() -> None:
    done = python("import sys; from pipemare_exp import cli; cli.main(['--help']); assert 'torch' not in sys.modules")
    assert done.returncode == 0, done.stderr
    for name in ("train", "eval", "plan"):
        assert f"\n  {name} " in done.stdout
    assert "examples:" in done.stdout


@pytest.mark.parametrize("name", cli.available())
def test_every_command_has_help_with_examples(name: str, capsys: pytest.CaptureFixture) -> None:
    assert cli.main([name, "--help"]) == 0
    output = capsys.readouterr().out
    assert f"usage: pipemare {name}" in output
    assert f"pipemare {name}" in output.split("usage:")[1].split("\n", 1)[1], "no example"


def test_commands_without_a_module_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.COMMANDS, "nonesuch", "never")
    assert "nonesuch" not in cli.available()
    assert "train" in cli.available()


def error(arguments: list[str], capsys: pytest.CaptureFixture) -> str:
    """What a wrong command prints; it must be two lines at most, on standard error, with exit code 2."""
    assert cli.main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("pipemare: error: ")
    assert len(printed.err.splitlines()) <= 2
    assert "Traceback" not in printed.err
    return printed.err


@pytest.mark.parametrize(
    "arguments, part",
    [
        (["trian"], 'did you mean "train"'),
        (["train", "task=digits", "method=pipemar"], "pipemare"),
        (["train", "methd=t1"], 'did you mean "method"'),
        (["train", "pipeline.microbatches=-8"], "pipeline.microbatches=-8"),
        (["train", "pipeline.stages=44"], "43 weight units"),
        (["train", "device=cuda0"], "device=cuda0"),
        (["eval", "nowhere"], "nowhere is no run"),
    ],
)
def test_wrong_commands(arguments: list[str], part: str, capsys: pytest.CaptureFixture) -> None:
    assert part in error(arguments, capsys)


def test_missing_data(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    said = error(["train", "task=cifar10", "method=gpipe", f"data.root={tmp_path}", "--runs", str(tmp_path)], capsys)
    assert "pipemare data prepare cifar10" in said
    assert list(tmp_path.iterdir()) == []


def test_a_run_folder_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    said = error(["train", *TINY, "progress=none", "--runs", str(tmp_path / "file")], capsys)
    assert "--runs" in said


def test_wrong_options_are_argparse_errors(capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["train", "--nonsense"]) == 2
    assert "unrecognized arguments: --nonsense" in capsys.readouterr().err
    assert cli.main([]) == 2


def test_train_and_eval_print_json_only(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    arguments = ["train", *TINY[:2], "--runs", str(tmp_path), *TINY[2:], "--json"]  # options between overrides
    assert cli.main(arguments) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["outcome"] == "finished" and result["step"] == 2
    assert Path(result["run"]).parent == tmp_path

    assert cli.main(["eval", Path(result["run"]).name, "--runs", str(tmp_path), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["accuracy"] == scores["logged"] == result["last"]

    assert cli.main(arguments) == 0  # finished: nothing to do
    printed = capsys.readouterr()
    assert json.loads(printed.out) == result
    assert "nothing to do" in printed.err


def test_cfg_prints_the_resolved_configuration_and_trains_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIPEMARE_RUNS", str(tmp_path))
    assert cli.main(["train", *TINY, "--cfg", "--json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert tree["pipeline"]["stages"] == 4 and len(tree["pipeline"]["boundaries"]) == 4
    assert cli.main(["train", *TINY, "--cfg"]) == 0
    assert capsys.readouterr().out.startswith("# digits-pipemare-demo-s0-")
    assert list(tmp_path.iterdir()) == []


def test_an_image_run_without_tracking_imports_neither_mlflow_nor_fairseq(tmp_path: Path) -> None:
    code = (
        "import sys; from pipemare_exp import cli; "
        f"assert cli.main(['train', *{TINY!r}, '--runs', {str(tmp_path)!r}]) == 0; "
        "found = {'mlflow', 'fairseq', 'matplotlib'} & set(sys.modules); assert not found, found"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr


def test_a_reader_that_leaves_is_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "pipemare_exp", "--version"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def run_cli(arguments: list[str], given: str = "", **environment: str) -> subprocess.CompletedProcess:
    """The command in a process of its own; what it reads and writes is taken as bytes of UTF-8."""
    return subprocess.run(
        [sys.executable, "-m", "pipemare_exp", *arguments],
        input=given.encode(),
        capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        timeout=120,
    )


def test_text_that_an_ascii_terminal_cannot_show_is_written_out(tmp_path: Path) -> None:
    done = run_cli(["runs", "--runs", str(tmp_path / "Läufe")], PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"L\\xe4ufe" in done.stdout


@pytest.mark.parametrize("name, shown", [("a\x1b[31mb", "a\\x1b[31mb"), ("a\nb", "a\nb"), ("a\udcffb", "a\\udcffb")])
def test_arguments_that_a_terminal_would_obey_are_refused(name: str, shown: str, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["eval", name]) == 2
    assert capsys.readouterr().err.startswith(f'pipemare: error: "{shown}" holds control characters')


def test_a_name_that_no_file_system_holds_is_the_users_mistake(capsys: pytest.CaptureFixture) -> None:
    assert "File name too long" in error(["eval", "a" * 300], capsys)


def test_the_name_of_a_folder_is_shown_and_not_obeyed(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for name in (b"a\x1b[31mb", b"c\xffd"):
        folder = os.path.join(os.fsencode(tmp_path), name)
        os.mkdir(folder)
        with open(os.path.join(folder, b"config.yaml"), "w", encoding="utf-8") as file:
            file.write("task: [")
    assert cli.main(["runs", "--runs", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "\x1b[31m" not in shown and "a\\x1b[31mb" in shown and "c\\udcffd" in shown


def test_a_rank_variable_of_the_cluster_is_not_taken_for_torchruns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else the process believes that it is a rank, and looks for the others."""
    from pipemare_exp.experiment.runtime import launch

    launched = []
    monkeypatch.setattr(launch, "launch", lambda cfg, argv: launched.append(argv) or 0)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert cli.main(["train", "engine=runtime", "engine.ranks=2", "--runs", str(tmp_path)]) == 0
    assert launched == [["train", "engine=runtime", "engine.ranks=2", "--runs", str(tmp_path)]]


def test_every_variable_of_ours_is_named_in_one_place_and_in_the_pages() -> None:
    package = Path(cli.__file__).parent
    found = {name for path in package.rglob("*.py") for name in re.findall(r"PIPEMARE_[A-Z]+", path.read_text("utf-8"))}
    ours = {value for value in vars(environment).values() if isinstance(value, str) and value.startswith("PIPEMARE_")}
    assert found == ours
    assert not re.findall(r"[\"']PIPEMARE_", "".join(
        path.read_text("utf-8") for path in package.rglob("*.py") if path.name != "environment.py"
    ))  # fmt: skip
    page = (package.parent / "docs" / "output.md").read_text("utf-8")
    assert {name for name in ours if f"`{name}`" in page} == ours - {environment.FAILURES, environment.STARTER}


def test_an_interrupt_is_a_line_and_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    from pipemare_exp.commands import train

    def interrupted(args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "run", interrupted)
    assert cli.main(["train"]) == 130
    assert capsys.readouterr().err == "pipemare: interrupted\n"
