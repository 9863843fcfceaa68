"""All weights in one kernel: the same steps as torch's SGD."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """In a process of its own: whether kernels are interpreted is settled when they are defined."""
    program = Path(__file__).with_name("one_launch_program.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    told = subprocess.run([sys.executable, str(program)], env=environment, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    result: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize("kind", ["plain", "nesterov"])
def test_weights_go_where_torch_takes_them(found: dict[str, Any], kind: str) -> None:
    assert found[kind]["apart"] < 1e-6
    assert found[kind]["moved"] > 1e-2


@pytest.mark.parametrize("kind", ["copies", "copies beside"])
def test_copies_in_bfloat16_follow_the_weights(found: dict[str, Any], kind: str) -> None:
    """The interpreter rounds to bfloat16 towards zero, a GPU to the nearest: a thousandth, not a millionth."""
    copies = found[kind]
    assert copies["apart"][0] < 1e-6  # the first step begins from the same copies
    assert max(copies["apart"]) < 1e-3
    assert copies["weights_have_no_gradient"]
    assert copies["copy_from_weight"] <= copies["largest_weight"] / 128


def test_weights_stepped_beside_backward_go_the_same_way(found: dict[str, Any]) -> None:
    beside = found["beside"]
    assert beside["apart"] < 1e-6
    assert beside["moved"] > 1e-2


def test_weights_are_stepped_before_backward_ends(found: dict[str, Any]) -> None:
    """The first step learns the order in which gradients come; a plain step waits for all of them."""
    without = 1  # one weight never has a gradient
    first, *others = found["beside"]["early"]
    assert first == [without]
    for number, early in enumerate(others, start=1):
        assert len(early) > 2
        assert early[-1] == without
        assert (early[0] > without) == (number != 2)


def test_weights_do_not_outlive_their_network(found: dict[str, Any]) -> None:
    """A process that trains many networks one after another would run out of memory."""
    assert not found["kept"]


def test_a_backward_that_failed_leaves_nothing_behind(found: dict[str, Any]) -> None:
    assert found["after a failure"] < 1e-6


def test_a_gradient_that_needs_a_stepped_weight_is_refused(found: dict[str, Any]) -> None:
    assert "modified by an inplace operation" in found["too early"]
