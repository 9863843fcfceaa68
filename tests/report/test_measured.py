"""What was measured in words: what is left out, and what is not."""

from nofe.report.measured import jobs_in_words


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
