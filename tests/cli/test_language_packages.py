import pytest

from kernelwright.sandbox.machine import PACKAGES, package_version


@pytest.mark.parametrize("language", PACKAGES)
def test_a_target_whose_package_is_missing_ends_with_3_and_how_to_install_it(kernelwright, language):
    if package_version(language):
        pytest.skip(f"{PACKAGES[language].distribution} is installed")
    done = kernelwright("run", "rms_norm", "--target", language)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1), done.stderr
    assert f"'{PACKAGES[language].requirement}'" in done.stderr


@pytest.mark.parametrize("language", PACKAGES)
def test_the_prompt_of_a_target_can_be_read_without_its_package(kernelwright, language):
    done = kernelwright("prompt", "rms_norm", "--target", language)
    assert done.returncode == 0 and done.stdout.startswith("You are an expert"), done.stderr
