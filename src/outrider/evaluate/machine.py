"""What a number was measured on: machine, versions, commit."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

_PACKAGES = ("outrider", "openvino", "openvino-genai", "numpy")


def machine() -> dict[str, str | int | float]:
    """Processor, cores and memory of this machine."""
    return {
        "cpu": _cpu_name(),
        "cores": psutil.cpu_count(logical=False) or os.cpu_count() or 1,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    flags = next((line for line in lines if line.startswith("flags")), "")
    vector = next((name for name in ("avx512f", "avx2", "avx") if name in flags.split()), "")
    return " ".join(part for part in (names[0] if names else platform.processor(), vector) if part)


def versions() -> dict[str, str]:
    """Versions of Python and of what computes."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """The commit of the checkout that this code runs from, marked when it has changes; None outside one."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return described.stdout.strip()


def provenance() -> dict[str, object]:
    """Machine, versions and commit, as every file of results says them."""
    return {"machine": machine(), "versions": versions(), "commit": commit()}
