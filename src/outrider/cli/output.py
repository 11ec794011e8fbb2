"""Files that commands write."""

from __future__ import annotations

from pathlib import Path

from outrider.errors import InvalidRequest


def write(path: Path | None, text: str) -> None:
    """Write a text where the user wants it; None is nowhere.

    Raises:
        InvalidRequest: the file cannot be written.
    """
    if path is None:
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"cannot write {path}: {error.strerror}") from None
