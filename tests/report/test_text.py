"""What a run says of its images before it trains."""

from typing import Any

import pytest

from nofe.report.text import images_in_words, jobs_in_words, listed, quoted

PHOTOS: dict[str, Any] = {
    "dataset": "folder:birds",
    "classes": 6,
    "train": 1078,
    "test": 30,
    "held_out": False,
    "stored": 32,
    "read": 32,
    "usual": 375,
    "architecture": "small",
}
LINE = "folder:birds: 6 classes, 1,078 training and 30 test images of 32 x 32 pixels"


def test_images_in_one_line_with_a_hint_where_details_are_lost() -> None:
    line, hint = images_in_words(PHOTOS).splitlines()
    assert line == LINE
    assert "about 375 pixels a side, and small reads 32" in hint
    assert "--architecture timm:resnet18 --pretrained" in hint


@pytest.mark.parametrize("change", [{"usual": None}, {"usual": 40}])
def test_no_hint_without_reason(change: dict[str, Any]) -> None:
    assert images_in_words(PHOTOS | change) == LINE


def test_images_that_are_held_out_are_no_test_images() -> None:
    assert "1,078 training and 30 held-out training images of" in images_in_words(PHOTOS | {"held_out": True})


def test_a_network_that_reads_crops() -> None:
    said = images_in_words(PHOTOS | {"stored": 256, "read": 224, "usual": 4000})
    assert said.endswith("test images of 256 x 256 pixels, read as crops of 224 x 224")


def test_a_comma_in_a_name_is_no_separator() -> None:
    assert listed(["crow", "jay, blue"]) == 'crow, "jay, blue"'


@pytest.mark.parametrize(("name", "shown"), [("crow", "crow"), ("jay, blue", '"jay, blue"'), ('é, "x"', r'"é, \"x\""')])
def test_a_name_with_a_comma_is_one_in_a_list(name: str, shown: str) -> None:
    assert quoted(name) == shown


def test_a_whole_job_in_words_has_every_part_that_took_time() -> None:
    environment = {"device": "a GPU", "precision": "bf16", "commit": "abc"}
    parts = {"base": 0.0, "generalist": 40.2, "experts": 170.0}
    job = {"seconds": 239.2, "parts": parts, "accuracy": 0.7818, "rule": "exact", "seed": 7}
    job["environment"] = environment
    with_report = job | {"parts": parts | {"report": 1.5}}
    *_, head, _, first, second = jobs_in_words({"architecture": "net", "jobs": [job, with_report]}).splitlines()
    assert head.split() == [
        "commit",
        "rule",
        "seed",
        "accuracy",
        "all",
        "generalist",
        "experts",
        "report",
        "imports,",
        "start",
    ]
    assert first.split() == ["abc", "exact", "7", "78.18%", "239.2", "40.2", "170.0", "0.0", "29.0"]
    assert second.split()[-2:] == ["1.5", "27.5"]
