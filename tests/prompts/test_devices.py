import pytest

from kernelwright.prompts import cpu_sheet, device_sheet, known_devices


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("NVIDIA H200", "NVIDIA H200"),
        ("h200", "NVIDIA H200"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 SXM"),
        ("NVIDIA H100 PCIe", "NVIDIA H100 PCIe"),
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100 40 GB"),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 SXM 80 GB"),
        ("Tesla V100-SXM2-32GB", "NVIDIA V100 SXM2 32 GB"),
        ("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090"),
        ("Tesla T4", "NVIDIA T4"),
    ],
)
def test_device_is_found_by_the_name_that_the_driver_reports(reported, name):
    assert device_sheet(reported).name == name


def test_unknown_device_has_no_sheet():
    assert device_sheet("NVIDIA H20") is None


@pytest.mark.parametrize("name", known_devices())
def test_every_known_device_finds_itself_and_no_other(name):
    assert device_sheet(name).name == name


def test_balances_of_the_h200_are_its_rates_over_its_bandwidth():
    assert any("about 14 fp32 operations" in fact for fact in device_sheet("H200").facts)
    assert any("tensor cores about 206)" in fact for fact in device_sheet("H200").facts)


def test_processor_is_described_by_its_widest_vectors():
    facts = cpu_sheet("x", 2, ["sse2", "avx", "avx2", "avx512f"], {}).facts
    assert [fact.split(":")[0] for fact in facts] == ["2 cores to use", "AVX-512"]


def test_cache_sizes_are_given_in_binary_units():
    facts = cpu_sheet("x", 4, [], {"L1d": 48 << 10, "L2": 1 << 20, "L3": 40 << 20}).facts
    assert facts[-1].startswith("caches") and facts[-1].endswith("L1d 48 KiB, L2 1 MiB, L3 40 MiB")
