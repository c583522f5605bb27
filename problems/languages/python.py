from kernelwright.problems.languages.language import Language

LANGUAGE = Language(name="python", words="PyTorch", device="cpu", runs_anywhere=True, order=90, compiled_by=None)
