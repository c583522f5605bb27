"""One process of a comparison: the user's own program, run once, then its calls timed in every way.

`python -m kernelwright.programs.child ORDER OUT`: what to do, as JSON, and the file for what came of it.
"""

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path

from kernelwright.programs.compare import Order, Times


def main(order: Order, out: Path) -> int:
    """2 with a sentence where the program can not be compared."""
    import torch

    from kernelwright.programs.guarded import NoPlace
    from kernelwright.programs.timing import Sides, calls_of, stage_errors

    with redirect_stdout(sys.stderr):
        calls = calls_of(Path(order.script), order.arguments)
        try:
            sides = Sides(calls, Path(order.run), order.compiled)
        except NoPlace as error:
            print(error, file=sys.stderr)
            return 2
        errors = stage_errors(sides) if order.errors else []
        taken, fallbacks = sides.counts()
        times = Times(
            samples={name: tuple(found) for name, found in sides.samples().items()},
            calls=len(calls),
            backward=any(call.backward for call in calls),
            on_device=any(call.is_on_device for call in calls),
            threads=torch.get_num_threads(),
            errors=tuple(errors),
            taken=taken,
            fallbacks=fallbacks,
            notes=tuple(sides.notes),
        )
    out.write_text(times.model_dump_json(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(Order.model_validate(json.loads(sys.argv[1])), Path(sys.argv[2])))
