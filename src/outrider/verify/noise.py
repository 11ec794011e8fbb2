"""Counter-based noise: every random number is a function of seed, stream, position and purpose, never of order.

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (Philox 4x64). Only raw 64-bit output is
used: numpy promises that stream for ever, and promises nothing for the distributions on top of it.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

_TWO_32 = 2.0**-32
_TWO_53 = 2.0**-53


class Purpose(IntEnum):
    """What a number is for; numbers of different purposes are independent."""

    RACE = 0
    ACCEPT = 1
    RESIDUAL = 2
    DRAFT = 3


def _philox(seed: int, stream: int, position: int, purpose: Purpose, window: int) -> np.random.Philox:
    key = np.array((seed, stream), np.uint64)
    return np.random.Philox(key=key, counter=np.array((0, position, purpose, window), np.uint64))


def race_bits(seed: int, stream: int, position: int, vocabulary: int) -> NDArray[np.uint32]:
    """32 random bits for every token of the vocabulary at this position, shape [vocabulary].

    A smaller vocabulary sees the beginning of a larger one's noise, so a draft and its target share it.
    """
    bits = _philox(seed, stream, position, Purpose.RACE, 0).random_raw((vocabulary + 1) // 2)
    return bits.view(np.uint32)[:vocabulary]


def exponential(bits: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Exp(1) variates from 32 random bits each."""
    return -np.log1p(-(bits.astype(np.float64) + 0.5) * _TWO_32)


def uniform(seed: int, stream: int, position: int, purpose: Purpose, window: int) -> float:
    """One number in [0, 1). `window` is the position where the verified window starts.

    Block verification looks at positions that it then does not accept; the window keeps the next look at the same
    position independent.
    """
    bits = int(_philox(seed, stream, position, purpose, window).random_raw())
    return (bits >> 11) * _TWO_53
