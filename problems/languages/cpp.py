from kernelwright.problems.languages.language import Example, Language

# load_inline takes no_implicit_headers, which the examples with raw pointers rest on, from PyTorch 2.8 on.
LANGUAGE = Language(
    name="cpp",
    words="C++ with OpenMP",
    device="cpu",
    order=10,
    examples=(Example("cpp", torch="2.8"), Example("cpp_classic", torch="1.5")),
)
