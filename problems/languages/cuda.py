from kernelwright.problems.languages.language import Example, Language

LANGUAGE = Language(
    name="cuda",
    words="CUDA C++",
    device="cuda",
    order=20,
    examples=(Example("cuda", torch="2.8"), Example("cuda_classic", torch="1.8")),
    is_cuda=True,
    shows_snippets=True,
    needs_nvcc=True,
    kernelbench="cuda",
)
