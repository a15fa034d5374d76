"""What the project says of itself agrees: pyproject, lock, environment.yml, citation, Makefile, wheel."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

import pipemare_exp

ROOT = Path(__file__).resolve().parents[1]
FAIRSEQ_WHEELS = {  # the two wheels that were read against upstream
    "5e84da7a92db08aae7f9cc3d155d4574d915fe1959dc1e041d514b6ef7bc000a",
    "9ba18767af12978b4700ac7d9914e6abfe365a50ce17faa6a79e8f07f4129be5",
}
ROOT_FILES = [
    "pyproject.toml",
    "requirements.lock",
    "environment.yml",
    "Makefile",
    "README.md",
    "CHANGELOG.md",
    "CITATION.cff",
    "LICENSE",
    ".gitignore",
    ".ci/run",
]


@pytest.fixture(scope="module")
def pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def project(pyproject: dict) -> dict:
    return pyproject["project"]


def read_lock(text: str) -> dict[str, tuple[Version, set[str]]]:
    """Canonical name -> (version, sha256 hashes), from entries `name==version --hash=sha256:...`."""
    locked = {}
    for entry in text.replace("\\\n", " ").splitlines():
        entry = entry.partition("#")[0].strip()
        if not entry:
            continue
        pinned, *options = entry.split()
        name, version = re.fullmatch(r"([\w.-]+)==(\S+)", pinned).groups()
        hashes = {re.fullmatch(r"--hash=sha256:([0-9a-f]{64})", option).group(1) for option in options}
        assert canonicalize_name(name) not in locked, f"{name} is locked twice"
        locked[canonicalize_name(name)] = (Version(version), hashes)
    return locked


@pytest.fixture(scope="module")
def lock() -> dict[str, tuple[Version, set[str]]]:
    return read_lock((ROOT / "requirements.lock").read_text())


def test_every_dependency_is_locked_inside_its_range(project: dict, lock: dict) -> None:
    declared = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    assert len(declared) >= 24
    for text in declared:
        requirement = Requirement(text)
        assert requirement.specifier, f"{text}: no range"
        version, _ = lock[canonicalize_name(requirement.name)]
        assert version in requirement.specifier, f"locked {requirement.name} {version}, declared {text}"


def test_every_locked_package_has_hashes(lock: dict) -> None:
    assert [name for name, (_, hashes) in lock.items() if not hashes] == []


def test_fairseq_is_pinned_to_the_wheels_that_were_checked(lock: dict) -> None:
    assert lock["ve-fairseq"] == (Version("0.12.3"), FAIRSEQ_WHEELS)


def test_packages_that_break_the_rest_are_left_out(lock: dict) -> None:
    assert not {"optuna", "hydra-optuna-sweeper", "fairseq"} & lock.keys()


@pytest.mark.parametrize(
    ("python", "allowed"), [("3.10.14", False), ("3.11.0", True), ("3.12.9", True), ("3.13.0", False)]
)
def test_python_range(project: dict, python: str, allowed: bool) -> None:
    assert (Version(python) in SpecifierSet(project["requires-python"])) is allowed


def test_build_backend_is_pinned_and_locked(pyproject: dict, lock: dict) -> None:
    (backend,) = pyproject["build-system"]["requires"]
    requirement = Requirement(backend)
    assert re.fullmatch(r"==[\d.]+", str(requirement.specifier)), f"not an exact version: {backend}"
    assert lock[requirement.name][0] in requirement.specifier


def test_conda_environment_is_one_that_pip_takes(project: dict, lock: dict, tmp_path: Path) -> None:
    """conda writes the pip section's lines into one file beside environment.yml and hands that to pip.

    With one hash in such a file, pip wants a hash of everything in it.
    """
    req_file = pytest.importorskip("pip._internal.req.req_file")
    session = pytest.importorskip("pip._internal.network.session").PipSession()
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    (pip,) = [item["pip"] for item in environment["dependencies"] if isinstance(item, dict)]
    shutil.copy(ROOT / "requirements.lock", tmp_path)
    (tmp_path / "condaenv.requirements.txt").write_text("\n".join(pip))
    asked = list(req_file.parse_requirements(str(tmp_path / "condaenv.requirements.txt"), session=session))
    assert len(asked) == len(lock)
    assert [one.requirement for one in asked if one.is_editable or not (one.options or {}).get("hashes")] == []
    plain = [item for item in environment["dependencies"] if isinstance(item, str)]
    assert "pip" in plain
    # Anything pinned here beside Python could disagree with the lock.
    (python,) = [item for item in plain if item != "pip"]
    name, version = python.split("=")
    assert name == "python" and Version(version) in SpecifierSet(project["requires-python"])


def test_console_script_exists(project: dict) -> None:
    module, function = project["scripts"]["pipemare"].split(":")
    tree = ast.parse((ROOT / Path(*module.split(".")).with_suffix(".py")).read_text())
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_version_is_kept_in_one_place(pyproject: dict, project: dict) -> None:
    assert "version" in project["dynamic"] and "version" not in project
    assert (ROOT / pyproject["tool"]["hatch"]["version"]["path"]) == Path(pipemare_exp.__file__)
    assert str(Version(pipemare_exp.__version__)) == pipemare_exp.__version__
    assert "version" not in yaml.safe_load((ROOT / "CITATION.cff").read_text())


def test_citation_names_the_software_and_the_paper(project: dict) -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0" and citation["type"] == "software"
    assert {"message", "title", "authors"} <= citation.keys()
    assert citation["license"] == project["license"] == "MIT"
    paper = citation["preferred-citation"]
    assert paper["title"] == "PipeMare: Asynchronous Pipeline Parallel DNN Training" and paper["year"] == 2021
    families = [author["family-names"] for author in paper["authors"]]
    assert families == ["Yang", "Zhang", "Li", "Ré", "Aberger", "De Sa"]
    assert any("1910.05124" in identifier["value"] for identifier in paper["identifiers"])


@pytest.mark.parametrize("name", ROOT_FILES)
def test_no_machine_of_ours_in_the_root_files(name: str) -> None:
    text = (ROOT / name).read_text()
    options = r"file://|--(?:extra-)?index-url\b|--find-links\b"
    folders = r"(?<![\w.}/-])/(?:home|root|work|opt|mnt|srv|Users)/\S+"
    assert re.findall(f"{options}|{folders}", text) == []
    if name in ("requirements.lock", "pyproject.toml", "environment.yml", "Makefile"):
        assert re.findall(r"https?://\S+", text) == []


def make(where: Path, *arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    ours = ("ARGS", "SEEDS", "PYTHON", "UPGRADE", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    env = {key: value for key, value in os.environ.items() if key not in ours}
    env |= {"PATH": path} if path else {}
    return subprocess.run(
        ["make", *arguments], cwd=where, env=env, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def bare_project(tmp_path: Path) -> Path:
    """A folder with the Makefile and what its environment depends on, but no environment."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_make_says_why_no_python_fits(bare_project: Path) -> None:
    tools = bare_project / "tools"
    tools.mkdir()
    for name, body in {
        "python3.11": "echo 'version manager: python3.11: command not found' >&2; exit 127",
        "python3.12": 'case "$1$2" in --version) echo "Python 3.12.1";; *ensurepip*) exit 1;; esac',
        "python3": 'case "$1" in --version) echo "Python 3.9.2";; *) exit 1;; esac',
        "python": "exit 127",
    }.items():
        (tools / name).write_text(f"#!/bin/sh\n{body}\n")
        (tools / name).chmod(0o755)
    done = make(bare_project, "venv", path=f"{tools}{os.pathsep}{os.environ['PATH']}")
    assert done.returncode == 2
    assert "Python 3.11 or 3.12 is needed" in done.stderr
    assert "python3.11: does not run" in done.stderr
    assert "python3.12: Python 3.12.1, but without venv and ensurepip" in done.stderr
    assert "python3: Python 3.9.2" in done.stderr
    assert "PYTHON=" in done.stderr
    assert not (bare_project / ".venv").exists()


def test_make_installs_again_only_when_the_lock_or_pyproject_changed(bare_project: Path) -> None:
    stamp = bare_project / ".venv" / ".installed"
    stamp.parent.mkdir()
    stamp.touch()
    assert make(bare_project, "-q", "venv").returncode == 0
    for name in ("requirements.lock", "pyproject.toml"):
        later = stamp.stat().st_mtime + 10
        os.utime(bare_project / name, (later, later))
        assert make(bare_project, "-q", "venv").returncode == 1, name
        os.utime(stamp, (later + 10, later + 10))
        assert make(bare_project, "-q", "venv").returncode == 0, name


def test_make_demo_hands_on_the_seeds(bare_project: Path) -> None:
    dry = ["-n", "-o", ".venv/.installed", "demo"]
    command = [".venv/bin/pipemare", "demo", "--seeds"]
    assert make(bare_project, *dry, "SEEDS=3").stdout.split() == [*command, "3"]
    assert make(bare_project, *dry).stdout.split() == [*command, "1"]


def test_wheel_carries_all_that_a_run_needs(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling is not installed (make venv installs it)")
    from hatchling.builders.wheel import WheelBuilder

    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path))
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (entry_points,) = [archive.read(name).decode() for name in names if name.endswith("entry_points.txt")]
    assert "pipemare = pipemare_exp.cli:main" in entry_points
    for folder in ("configs", "sweeps"):
        sources = {file.relative_to(ROOT / folder).as_posix() for file in (ROOT / folder).rglob("*.*")}
        assert sources, f"{folder}/ is empty"
        assert {f"pipemare_exp/_{folder}/{source}" for source in sources} <= names
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"pipemare_exp", "paper_figures"}
    assert {"pipemare_exp/analysis/published.yaml", "pipemare_exp/report/templates/report.html"} <= names


@pytest.mark.parametrize(
    ("path", "ignored"),
    [
        (".venv/bin/python", True),
        ("results/runs/digits-gpipe-demo-s0-00000000/metrics.jsonl", True),
        ("results/mlflow.db", True),
        ("results/mlflow.db-wal", True),
        ("results/mlartifacts/1/artifact.txt", True),
        ("pipemare_exp/__pycache__/cli.cpython-311.pyc", True),
        ("results/digits/ablation.csv", False),
        ("pipemare_exp/data/cifar10.py", False),
        ("configs/data/digits.yaml", False),
        ("tests/data/test_digits.py", False),
        ("requirements.lock", False),
    ],
)
def test_gitignore(path: str, ignored: bool) -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    done = subprocess.run(["git", "check-ignore", "-q", "--no-index", path], cwd=ROOT, check=False)
    assert done.returncode == (0 if ignored else 1)
