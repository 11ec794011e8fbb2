"""Where a model comes from: names, pulls, conversion to OpenVINO IR, and its tokenizer."""

from outrider.models.base import Manifest, ModelFiles, Progress, silent
from outrider.models.head import HeadFiles
from outrider.models.resolve import Resolver
from outrider.models.tokenizer import Message, Tokenizer

__all__ = ["HeadFiles", "Manifest", "Message", "ModelFiles", "Progress", "Resolver", "Tokenizer", "silent"]
