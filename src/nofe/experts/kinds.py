"""What a value is while K branches become one graph, and what is said where that cannot be."""

from enum import Enum


class NotFusable(Exception):
    """The message names the layer."""


class Kind(Enum):
    SHARED = "shared"  # the trunk's own, the same for all experts
    MAPS = "maps"  # (N, K*D, h, w)
    VECTORS = "vectors"  # (N, K, ...): vectors, tokens, or whatever each expert has for itself
    WEIGHTS = "weights"  # (K, ...): a parameter that a block reads by name, such as the scale of a layer
    NUMBERS = "numbers"  # sizes of what one expert has, and what is made of them
