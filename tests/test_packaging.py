"""What is shipped: wheel, source distribution, citation."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from benchmarks.licences import name_of, verdicts

import logel

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with wheel and source distribution."""
    if absent := [name for name in ("build", "hatchling") if find_spec(name) is None]:
        pytest.skip(f"{' and '.join(absent)} not installed: nothing can be built")
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def package_files() -> set[str]:
    """Every file of the package in the tree, as the wheel must have it."""
    source = ROOT / "src"
    return {
        path.relative_to(source).as_posix()
        for path in (source / "logel").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.mark.slow
def test_the_wheel_has_the_package_with_its_data_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert wheel.name == f"logel-{logel.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(f"logel-{logel.__version__}.dist-info/METADATA").decode()
    shipped = {name for name in names if ".dist-info/" not in name}
    assert shipped == package_files()
    for needed in (
        "logel/py.typed",
        "logel/report/assets/page.html",
        "logel/report/assets/page.css",
        "logel/report/assets/page.js",
        "logel/envs/crossroad/networks/crossroad-4.net.xml",
    ):
        assert needed in shipped
    assert "Provides-Extra: all" in metadata
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.slow
def test_the_source_distribution_can_be_tested_and_cited(built: Path) -> None:
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CITATION.cff", "LICENSE", "Makefile", "README.md", "constraints.txt"} <= names
    assert {"src/logel/py.typed", "tests/test_packaging.py"} <= names
    assert not any(name.startswith((".venv", "runs", ".git/", "dist")) for name in names)


@pytest.mark.slow
def test_the_wheel_runs_from_an_environment_of_its_own(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    home = tmp_path / "venv"
    venv.create(home, symlinks=True)
    site = next((home / "lib").glob("python*")) / "site-packages"
    # Offline, so the dependencies are those of this environment; logel is the wheel's.
    dependencies = {str(Path(logel.__file__).parents[1])}
    paths = [p for p in sys.path if p.endswith("site-packages") and p not in dependencies]
    (site / "dependencies.pth").write_text("\n".join(paths))
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, "--target", str(site), str(wheel)], check=True, timeout=300)
    program = (
        "import logel, sys\n"
        "from logel.report.page_parts import asset\n"
        "from logel.envs.crossroad.network import network_path\n"
        "print(logel.__file__, len(asset('page.js')) > 1000, network_path(4).is_file())"
    )
    python = str(home / "bin" / "python")
    environment = {"PATH": str(home / "bin"), "HOME": str(tmp_path)}
    run = {"capture_output": True, "text": True, "env": environment, "cwd": tmp_path}
    shown = subprocess.run([python, "-m", "logel", "--version"], **run)  # type: ignore[call-overload]
    assert shown.stdout == f"logel {logel.__version__}\n", shown.stderr
    found = subprocess.run([python, "-c", program], **run)  # type: ignore[call-overload]
    assert found.stdout.split() == [str(site / "logel" / "__init__.py"), "True", "True"], (
        found.stderr
    )


def test_the_citation_names_paper_and_software() -> None:
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0" and citation["message"]
    assert citation["authors"] == [{"name": "The logel authors"}]
    assert str(citation["version"]) == logel.__version__
    assert citation["license"] == "Apache-2.0"
    (paper,) = citation["references"]
    assert paper["title"] == "Inverse Reinforcement Learning from a Gradient-based Learner"
    assert [author["family-names"] for author in paper["authors"]] == [
        "Ramponi",
        "Drappo",
        "Restelli",
    ]
    assert paper["year"] == 2020


def test_the_version_is_told_once() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == logel.__version__


def test_every_dependency_is_locked_and_the_oldest_are_those_that_are_declared() -> None:
    """`constraints.txt` is what was tested; `constraints-oldest.txt` what pyproject.toml allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed, extras = project["dependencies"], project["optional-dependencies"]
    every = [*needed, *(entry for entries in extras.values() for entry in entries)]
    locked = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M))
    names = {name.lower().replace("_", "-") for name in locked}
    wanted = {name_of(entry) for entry in every if name_of(entry) != "logel"}
    assert wanted - names == set()
    oldest = (ROOT / "constraints-oldest.txt").read_text()
    for name, version in re.findall(r"^([\w.-]+)==(\S+)$", oldest, re.M):
        if name == "torch":
            continue  # older ones are accepted, and have not been tried by the whole suite
        declared = re.findall(rf"^{name}[>=]=([\d.]+)", "\n".join(every), re.M)
        lower = {re.sub(r"(\.0)+$", "", found) for found in declared}
        assert not lower or re.sub(r"(\.0)+$", "", version) in lower, name


def test_licences_are_permissive_or_known() -> None:
    odd = {name: said for name, (said, fine) in verdicts().items() if not fine}
    assert odd == {}
