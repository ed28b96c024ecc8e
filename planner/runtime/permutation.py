"""A shuffled order of any number of things that takes no memory: place `i` is computed, not looked up.

A Feistel network over the smallest power of four that holds `size`, walked until it lands inside (cycle walking: Black
and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002, section 2). Four rounds of a 64-bit mixer are no cipher, but
a training order needs none.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1
_ROUNDS = 4


def permuted(index: int, *, size: int, seed: int) -> int:
    """Where `index` (0 to size-1) stands in the order that `seed` names: a bijection of 0 to size-1."""
    half_bits = max(1, (size - 1).bit_length() + 1) // 2 or 1
    while True:
        index = _feistel(index, half_bits=half_bits, seed=seed)
        if index < size:  # the domain is less than 4 x size, so this takes fewer than 4 rounds on average
            return index


def _feistel(value: int, *, half_bits: int, seed: int) -> int:
    mask = (1 << half_bits) - 1
    left, right = value >> half_bits, value & mask
    for number in range(_ROUNDS):
        left, right = right, left ^ (_mixed(right + (number << 56) + seed) & mask)
    return (left << half_bits) | right


def _mixed(value: int) -> int:
    """SplitMix64's finaliser (Steele, Lea and Flood, 2014)."""
    value = (value * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
