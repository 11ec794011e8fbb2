"""The cache: whole or not at all, verified, offline."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from outrider.errors import ModelError
from outrider.models import Manifest
from outrider.models.base import MODEL_FILES, TOKENIZER_FILES
from outrider.models.store import Store, home


def manifest(name: str = "m") -> Manifest:
    return Manifest(
        name=name, source="test", architecture="llama", weights="F16", parameters=1, context_length=8,
        eos_ids=(0,), special_ids=(),
    )  # fmt: skip


def build(directory: Path) -> Manifest:
    for name in (*MODEL_FILES, *TOKENIZER_FILES):
        (directory / name).write_text(name)
    return manifest()


def test_what_was_installed_is_found_and_verified(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.find("m") is None
    installed = store.install("m", build)
    found = store.find("m")
    assert found is not None
    assert found.manifest == installed.manifest
    assert set(found.manifest.files) == {*MODEL_FILES, *TOKENIZER_FILES}
    store.verify(found)
    assert [model.manifest.name for model in store.all()] == ["m"]


@pytest.mark.parametrize("error", [RuntimeError("killed"), KeyboardInterrupt()])
def test_an_interrupted_pull_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    store = Store(tmp_path)

    def interrupted(directory: Path) -> Manifest:
        (directory / MODEL_FILES[0]).write_text("half")
        raise error

    with pytest.raises(type(error)):
        store.install("m", interrupted)
    assert list(store.root.iterdir()) == []
    store.install("m", build)


def test_what_a_killed_pull_left_is_swept_and_a_running_one_is_not(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.root.mkdir(parents=True)
    dead = store.root / ".partial-m-999999999-abc"
    running = store.root / f".partial-m-{os.getpid()}-abc"
    for directory in (dead, running):
        directory.mkdir()
    store.install("m", build)
    assert not dead.exists()
    assert running.exists()
    assert [model.manifest.name for model in store.all()] == ["m"]


def test_two_at_once_the_first_wins(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def slow(directory: Path) -> Manifest:
        Store(tmp_path).install("m", build)
        build(directory)
        return manifest("second")

    assert store.install("m", slow).manifest.name == "m"


def test_a_missing_part_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"wrote no openvino_model\.xml"):
        Store(tmp_path).install("m", lambda _: manifest())


def test_a_file_cut_short_is_noticed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    model = store.install("m", build)
    (model.directory / MODEL_FILES[1]).write_text("")
    with pytest.raises(ModelError, match=r"missing or cut short; delete .* and pull again"):
        store.find("m")


def test_a_changed_file_fails_verification(tmp_path: Path) -> None:
    store = Store(tmp_path)
    model = store.install("m", build)
    path = model.directory / MODEL_FILES[1]
    path.write_text("x" * len(path.read_text()))
    with pytest.raises(ModelError, match=r"openvino_model\.bin has sha256 .*, not "):
        store.verify(model)


def test_a_broken_manifest_says_what_to_do(tmp_path: Path) -> None:
    store = Store(tmp_path)
    model = store.install("m", build)
    (model.directory / "outrider.json").write_text("{")
    with pytest.raises(ModelError, match=r"cannot be read .* pull again"):
        store.find("m")


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    def full(directory: Path) -> Manifest:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(ModelError, match=r"disk of .* is full \(\d+ MiB free\); free some or set OUTRIDER_HOME"):
        Store(tmp_path).install("m", full)


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match=r"cannot write .*; set OUTRIDER_HOME"):
        Store(tmp_path / "file").install("m", build)


def test_home_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path))
    assert home() == tmp_path
    monkeypatch.delenv("OUTRIDER_HOME")
    assert home().name == "outrider"
