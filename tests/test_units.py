import pytest

from tutorial_lib import units


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (12_345_678, "11.8 MiB"),
        (units.GIB - 1, "1.00 GiB"),
        (80 * units.GIB, "80.0 GiB"),
        (-units.MIB, "-1.00 MiB"),
        (300 * units.TIB, "300 TiB"),
    ],
)
def test_bytes_have_three_digits_and_a_binary_unit(num_bytes, text):
    assert units.human_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.00 µs"), (2.5e-6, "2.50 µs"), (0.0123, "12.3 ms"), (3, "3.00 s"), (90, "1.50 min")],
)
def test_seconds(seconds, text):
    assert units.human_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(7, "7"), (124_439_808, "124 M"), (6_738_415_616, "6.74 G")]
)
def test_counts(count, text):
    assert units.human_count(count) == text


def test_flops_carry_their_unit():
    assert units.human_flops(3.1e12) == "3.10 TFLOP"


@pytest.mark.parametrize(
    ("largest", "unit"), [(100, ("bytes", 1)), (5 * units.MIB, ("MiB", units.MIB))]
)
def test_an_axis_takes_the_unit_of_its_largest_value(largest, unit):
    assert units.binary_unit(largest) == unit
