"""The snippets of the documentation are run, as a reader would run them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tallymark

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def run(command: list[str], where: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        command, cwd=where, env=env, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    page = ROOT / "docs" / "tutorial" / "first-run.md"
    (training,) = blocks(page, "python")
    (tmp_path / "train.py").write_text(training)
    first, look, second = blocks(page, "sh")
    said = run(["bash", "-ec", first], tmp_path).stdout
    assert [line.split(" is whole")[0] for line in said.splitlines()] == ["step 0", "step 1", "step 2"]
    shown = run(["bash", "-ec", look], tmp_path).stdout
    assert "rank1.json" in shown
    said = run(["bash", "-ec", second], tmp_path).stdout
    assert [line.split(" is whole")[0] for line in said.splitlines()] == ["step 3", "step 4", "step 5"]
    manifest = tallymark.open(tmp_path / "my-run").latest()
    assert manifest is not None
    assert manifest.checkpoint is not None
    with manifest.checkpoint.open("rank1.json") as file:
        assert json.load(file)["value"] == 2 * (1 - 0.5**6)


def test_the_example_of_the_readme_runs(tmp_path: Path) -> None:
    (example,) = blocks(ROOT / "README.md", "python")
    example = example.replace("s3://bucket/runs/llama", str(tmp_path / "run")).replace("10_000", "1001")
    before = (
        "import pathlib, tempfile\n"
        "def load(folder): print((folder / 'shard').read_text())\n"
        "def train(step): return 1 / (step + 1)\n"
        "def save_shard(step):\n"
        "    folder = pathlib.Path(tempfile.mkdtemp())\n"
        "    (folder / 'shard').write_text(str(step))\n"
        "    return folder\n"
    )
    script = tmp_path / "example.py"
    script.write_text(before + example)
    for launch, said_first in (("a", "1000 {"), ("b", "1000\n1000 {")):  # the second loads what the first has saved
        said = run(
            [sys.executable, "-W", "error", str(script)],
            tmp_path,
            TALLYMARK_RANK="0",
            TALLYMARK_WORLD_SIZE="1",
            TALLYMARK_LAUNCH_ID=launch,
        )
        assert said.stdout.startswith(said_first), said.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_snippets_are_python(page: Path) -> None:
    for snippet in blocks(page, "python"):
        compile(snippet, str(page), "exec")
