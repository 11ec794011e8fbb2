"""How good and how alike texts are: ROUGE against references, exact match, and a user's own judge."""

from __future__ import annotations

import importlib.util
import resource
import subprocess
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from pydantic import BaseModel

from outrider.errors import InvalidRequest

ROUGE = ("rouge1", "rouge2", "rougeL")
_DRAWS = 1000


class Interval(BaseModel):
    """A mean with its 95% interval over texts (bootstrap)."""

    mean: float
    low: float
    high: float


def interval(values: Sequence[float], seed: int = 0) -> Interval:
    """Bootstrap a mean. Of nothing it is 0."""
    if not len(values):
        return Interval(mean=0.0, low=0.0, high=0.0)
    array = np.asarray(values, float)
    draws = np.random.default_rng(seed).integers(0, len(array), (_DRAWS, len(array)))
    low, high = np.percentile(array[draws].mean(axis=1), [2.5, 97.5])
    return Interval(mean=float(array.mean()), low=float(low), high=float(high))


@lru_cache(maxsize=1)
def _scorer() -> Any:
    if importlib.util.find_spec("rouge_score") is None:
        raise InvalidRequest("ROUGE needs rouge-score; install it with: pip install 'outrider[eval]'")
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(list(ROUGE), use_stemmer=True)


def rouge(text: str, reference: str) -> dict[str, float]:
    """F-measures of ROUGE-1, ROUGE-2 and ROUGE-L.

    Raises:
        InvalidRequest: rouge-score is not installed.
    """
    scores = _scorer().score(reference, text)
    return {name: float(scores[name].fmeasure) for name in ROUGE}


def exact_match(text: str, reference: str) -> bool:
    """Whether they are the same, white space and case aside."""
    return " ".join(text.lower().split()) == " ".join(reference.lower().split())


def passes(command: Sequence[str], text: str, seconds: float = 10.0, memory_bytes: int = 1 << 30) -> bool:
    """Whether a command that is given the text on standard input exits with 0.

    It runs as this user in a process of its own, with limits on time, memory, processor and file size, and without
    this process's environment. That keeps accidents in; it is no jail for hostile code.

    Raises:
        InvalidRequest: the command cannot be started.
    """

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 1))
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 20, 16 << 20))

    try:
        done = subprocess.run(
            list(command),
            input=text.encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin"},
            timeout=seconds,
            start_new_session=True,
            preexec_fn=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    except OSError as error:
        raise InvalidRequest(f"the judge {command[0]!r} cannot be started: {error.strerror}") from None
    return done.returncode == 0
