"""Where MIG instances can be, held against the table of NVIDIA's MIG user guide."""

import pytest

from longshore.models.mig import (
    check_profile,
    first_slice,
    listed_models,
    positions_of,
    profile_gb,
    profile_of,
    slices_gb,
)


def test_an_h100_has_the_profiles_and_starts_of_the_guide():
    positions = positions_of("h100", 80)
    assert positions is not None
    starts = {name: [first_slice(mask) for mask in masks] for name, masks in positions.items()}
    assert starts == {
        "1g.10gb": [0, 1, 2, 3, 4, 5, 6], "1g.20gb": [0, 2, 4, 6], "2g.20gb": [0, 2, 4],
        "3g.40gb": [0, 4], "4g.40gb": [0], "7g.80gb": [0],
    }  # fmt: skip
    sizes = {name: {mask.bit_count() for mask in masks} for name, masks in positions.items()}
    assert sizes == {
        "1g.10gb": {1}, "1g.20gb": {2}, "2g.20gb": {2}, "3g.40gb": {4}, "4g.40gb": {4},
        "7g.80gb": {8},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("model", "vram", "names"),
    [
        ("A100", 40, "1g.5gb 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb"),
        ("A100", 85.9, "1g.10gb 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"),
        ("H200", 150.8, "1g.18gb 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb"),
        ("B200", 180, "1g.23gb 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb"),
    ],
)
def test_names_follow_the_memory_of_the_model(model: str, vram: float, names: str):
    assert " ".join(positions_of(model, vram) or {}) == names


def test_a_model_that_is_not_listed_has_no_positions():
    assert positions_of("T4", 16) is None
    assert positions_of("H100", 40) is None
    assert "H200-141GB" in listed_models()


def test_instances_of_one_gpu_never_have_more_memory_than_it_has():
    for vram in (39.9, 80, 141, 150.755, 180):
        halves = slices_gb(vram, 0b1111) + slices_gb(vram, 0b11110000)
        assert halves <= vram
        assert sum(slices_gb(vram, 1 << start) for start in range(7)) <= vram * 7 / 8
    assert slices_gb(80, 0b11) == 20


def test_the_profile_is_read_from_the_name_of_a_device():
    assert profile_of("NVIDIA H100 80GB HBM3 MIG 1g.10gb") == "1g.10gb"
    assert profile_of("NVIDIA A100-SXM4-40GB MIG 1g.5gb+me") == "1g.5gb"
    assert profile_of("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb") is None
    assert profile_of("NVIDIA H100 80GB HBM3") is None
    assert profile_of("") is None


def test_a_profile_has_a_name_of_one_form():
    assert check_profile(" 3G.40GB ") == "3g.40gb"
    assert profile_gb("3g.40gb") == 40
    for wrong in ("3g", "40gb", "3g40gb", "0g.10gb", ""):
        with pytest.raises(ValueError, match=r"such as 1g\.10gb"):
            check_profile(wrong)
