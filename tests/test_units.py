import copy
import json
import pickle
import random

import pytest

from tutorial_lib import units
from tutorial_lib.checks.given.values import plain
from tutorial_lib.units import Bytes


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (units.GIB - 1, "1.00 GiB"),
        (80 * units.GIB, "80.0 GiB"),
        (-units.MIB, "-1.00 MiB"),
    ],
)
def test_bytes_have_three_digits_and_a_binary_unit(num_bytes, text):
    assert units.human_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1025, "1.01 KiB"),
        (units.MIB + 1, "1.01 MiB"),
        (units.GIB - 1, "1.00 GiB"),
        (int(9.991 * units.GIB), "10.0 GiB"),
        (int(99.92 * units.MIB), "100 MiB"),
        (int(1023.4 * units.MIB), "1.00 GiB"),
        (-units.MIB - 1, "-1.00 MiB"),
    ],
)
def test_what_has_to_be_enough_is_rounded_up(num_bytes, text):
    assert units.human_bytes(num_bytes, up=True) == text


def test_what_is_rounded_up_is_read_as_no_less_and_hardly_more():
    drawn = random.Random(0)
    for _ in range(20_000):
        size = int(2 ** drawn.uniform(0, 46))
        read = units.parse_bytes(units.human_bytes(size, up=True))
        assert size <= read <= 1.0103 * size


def test_bytes_print_themselves():
    size = Bytes(12_345_678)
    assert str(size) == repr(size) == f"{size}" == "11.8 MiB"
    assert f"{[size]}" == "[11.8 MiB]"
    assert [f"{size:>10}", f"{size:10}", f"{size:<10}|", f"{size:*^10}"] == [
        "  11.8 MiB",
        "  11.8 MiB",
        "11.8 MiB  |",
        "*11.8 MiB*",
    ]


def test_bytes_are_saved_as_their_digits():
    size = Bytes(1536)
    assert json.dumps({"peak": size}) == json.dumps({"peak": size}, indent=None) == '{"peak": 1536}'
    assert json.dumps([size], indent=1) == "[\n 1536\n]"
    for saved in (pickle.loads(pickle.dumps(size)), copy.deepcopy(size), plain(size)):
        assert (saved, type(saved)) == (1536, int)


@pytest.mark.parametrize(
    ("flops", "text"), [(7, "7 FLOP"), (124_439_808, "124 MFLOP"), (3.1e12, "3.10 TFLOP")]
)
def test_flops_carry_their_unit(flops, text):
    assert units.human_flops(flops) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [("16GiB", 16 * units.GIB), ("1.5 GB", 1_500_000_000), ("512 MiB", 2**29), ("7B", 7)],
)
def test_sizes_are_read(text, size):
    assert units.parse_bytes(text) == size


@pytest.mark.parametrize(
    "text",
    ["", "16", "GiB", "-1GiB", "1.2.3GiB", "1e3GiB", "many GiB", "0B", "16gib", "16 gib", "16GiBs"],
)
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="a memory size"):
        units.parse_bytes(text)
