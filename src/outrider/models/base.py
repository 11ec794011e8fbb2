"""What is known about a model on disk, and how a pull reports its progress."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from outrider.errors import ModelError

MANIFEST = "outrider.json"
VOCABULARY = "vocabulary.npy"
"""What each token of a draft that was made for a model is to that model."""
MODEL_FILES = ("openvino_model.xml", "openvino_model.bin")
TOKENIZER_FILES = (
    "openvino_tokenizer.xml",
    "openvino_tokenizer.bin",
    "openvino_detokenizer.xml",
    "openvino_detokenizer.bin",
)


class Progress(Protocol):
    """Called as work goes on; `total` is 0 while it is unknown."""

    def __call__(self, stage: str, done: int, total: int) -> None: ...


def silent(stage: str, done: int, total: int) -> None:
    """Progress that nobody watches."""


class FileRecord(BaseModel):
    """Size and hash of one file of a pulled model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: int
    sha256: str


class Manifest(BaseModel):
    """`outrider.json`: what a model is, where it came from, and what its files should be."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    source: str
    architecture: str
    weights: str
    """Type of most weights, as `F16` or `Q4_1`."""
    parameters: int
    """0 where the source does not say."""
    context_length: int
    eos_ids: tuple[int, ...]
    special_ids: tuple[int, ...]
    """Control tokens, which have no text of their own."""
    drafts_for: str = ""
    """Name of the model that it was pruned from to draft for it: it has a table of that one's tokens and no tokenizer
    of its own."""
    files: dict[str, FileRecord] = {}


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model that is ready to load: IR and tokenizer in one directory."""

    directory: Path
    manifest: Manifest

    @property
    def bytes(self) -> int:
        """Size on disk."""
        return sum(path.stat().st_size for path in self.directory.iterdir() if path.is_file())

    def table(self) -> NDArray[np.int64]:
        """The target's id of each token of a draft that was pruned from it, shape [tokens].

        Raises:
            ModelError: the file is missing or broken.
        """
        path = self.directory / VOCABULARY
        try:
            ids: NDArray[np.int64] = np.load(path).astype(np.int64)
        except (OSError, ValueError) as error:
            raise ModelError(f"{path} cannot be read ({str(error).splitlines()[0]}); train the draft again") from None
        return ids
