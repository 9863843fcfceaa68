"""The benchmark compares what it says it compares."""

import pytest
import torch

from nofe.bench import Case, cases, measure
from nofe.errors import UserError
from nofe.training.runtime import make_runtime


def test_every_combination_and_the_base_once() -> None:
    made = cases(["base", "fused"], ["eager"], ["train"], [2, 5], [10], [4])
    assert made == [
        Case("base", "eager", "train", 10, 0, 4),
        Case("fused", "eager", "train", 10, 2, 4),
        Case("fused", "eager", "train", 10, 5, 4),
    ]


@pytest.mark.parametrize(("option", "chosen"), [("network", ["bse"]), ("mode", ["egaer"]), ("task", ["trian"])])
def test_an_unknown_choice_is_named(option: str, chosen: list[str]) -> None:
    choices = {"networks": None, "modes": None, "tasks": None} | {f"{option}s": chosen}
    with pytest.raises(UserError, match=rf"--{option} {chosen[0]}: unknown; choose from"):
        cases(**choices, experts=[2], classes=[4], batches=[2])


def test_ratios_are_to_the_base_of_the_same_task_and_work_is_counted() -> None:
    chosen = cases(["base", "loop", "fused"], ["eager"], None, [2], [6], [4])
    measured = measure("small", chosen, make_runtime("cpu"), rounds=1, seconds_a_round=0.01)
    timings = {(t["case"]["network"], t["case"]["task"]): t for t in measured["timings"]}
    for task in ("train", "forward"):
        base = timings["base", task]
        assert base["ratio_to_base"] == 1
        for network in ("loop", "fused"):
            ratio = timings[network, task]["milliseconds"] / base["milliseconds"]
            assert timings[network, task]["ratio_to_base"] == pytest.approx(ratio, rel=1e-2, abs=1e-3)
        # The same branches, however they are run: the same parameters and multiplications.
        assert timings["loop", task]["parameters"] == timings["fused", task]["parameters"]
        assert timings["loop", task]["gigaflops"] == timings["fused", task]["gigaflops"] > base["gigaflops"]
    assert timings["base", "train"]["gigaflops"] == pytest.approx(3 * timings["base", "forward"]["gigaflops"], abs=2e-3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU can capture")
def test_modes_that_the_device_cannot_run_are_refused() -> None:
    with pytest.raises(UserError, match="no case is left"):
        measure("small", cases(None, ["captured"], None, [2], [6], [4]), make_runtime("cpu"))
