"""When jobs side by side end, as far as it can be told."""

import pytest

from nofe.forecast import Forecast, beside_others


def test_what_is_under_way_has_so_much_less_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of 100 seconds take 168 side by side; once half of that is over, 50 of each are left."""
    clock = [1000.0]
    monkeypatch.setattr("nofe.forecast.time.monotonic", lambda: clock[0])
    forecast = Forecast()
    assert forecast.seconds_with(100) == pytest.approx(100)
    forecast.begin("one", 100)
    assert forecast.seconds_with(100) == pytest.approx(100 * 2**0.75)
    forecast.begin("other", 100)
    clock[0] += 50 * 2**0.75
    assert forecast.seconds_with(0) == pytest.approx(50 * 2**0.75)
    assert forecast.seconds_with(50) == pytest.approx(50 * 3**0.75)
    clock[0] += 100 * 2**0.75
    forecast.end("one", well=True)  # it took 150
    assert forecast.slower == pytest.approx(1.5)
    assert forecast.seconds_with(100) == pytest.approx(150), "the other is as late, and ends now"
    forecast.end("other", well=False)
    assert forecast.slower == pytest.approx(1.5), "what failed says nothing"


def test_on_a_share_of_the_device_the_last_one_is_no_faster_than_beside_others() -> None:
    """A quarter of the device is a quarter of it when nothing else runs, too."""
    assert [beside_others(count, share=25) for count in (1, 2, 4)] == [4**0.75] * 3
    assert beside_others(8, share=25) == beside_others(8) == 8**0.75
    forecast = Forecast(share=25)
    assert forecast.seconds_with(100) == pytest.approx(100 * 4**0.75)
    forecast.begin("one", 100)
    assert forecast.seconds_with(100) == pytest.approx(100 * 4**0.75)


def test_a_network_that_fills_the_device_makes_all_take_turns_until_it_has_ended() -> None:
    forecast = Forecast()
    forecast.begin("large", 60, leaves_room=False)
    assert forecast.seconds_with(60, leaves_room=False) == pytest.approx(120, abs=0.1)
    assert forecast.seconds_with(100) == pytest.approx(120 + 40, abs=0.1)
    forecast.end("large", well=True)
    forecast.begin("small", 100)
    assert forecast.seconds_with(100) == pytest.approx(100 * 2**0.75, abs=0.1)
