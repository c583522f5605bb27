"""Constructing a candidate of one of the further languages in a jailed builder, without a device."""

from kernelwright.agent.providers.recorded import recorded_targets
from kernelwright.problems import catalog_names
from kernelwright.sandbox.calls.sessions import Refused, Session
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.workfolder import WorkFolder

ARGUMENTS = {
    "activation_chain": (-0.25, 3.0, 0.8, -0.3),
    "gelu_bias_residual": (2048,),
    "rms_norm": (1024, 1e-5),
    "softmax_rows": (),
}
"""Of the constructors of recorded answers, by problem."""


def recorded(language):
    """The problems to which there is a recorded answer in that language."""
    return [name for name in catalog_names() if language in recorded_targets(name)]


def constructed(source, *arguments, then=""):
    """How many device programs lie in the folder once the candidate was constructed, and what the builder said.

    It says nothing where all is well, also with the lines `then`, which see the `model`.
    """
    folder = WorkFolder()
    more = f"\nmodel = ModelNew(*{arguments!r})\n{then}\nclass Made: pass\n"
    try:
        with Session("builder", folder, Settings()) as session:
            session.greet()
            message = {"op": "build", "entry": "Made", "built": str(folder.path / "build"), "arguments": {"l": []}}
            text, said = folder.write("candidate.py", source + more), ""
            try:
                session.ask(message | {"source": str(text), "threads": 1, "cores": [0]}, 300)
            except Refused as error:
                said = f"{error.reason}\n{error.log}"
        return len(list(folder.path.rglob("*.cubin"))), said
    finally:
        folder.close()
