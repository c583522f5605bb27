"""All cheats, each under a name made from what it does."""

from tests.hostile.cheats.attacked_harness import ATTACKED_HARNESS
from tests.hostile.cheats.cheat import Cheat
from tests.hostile.cheats.no_kernels import NO_KERNELS
from tests.hostile.cheats.reused_results import REUSED_RESULTS
from tests.hostile.cheats.wrong_results import WRONG_RESULTS

ALL = [*WRONG_RESULTS, *REUSED_RESULTS, *ATTACKED_HARNESS, *NO_KERNELS]
CHEATS: dict[str, Cheat] = {f"{cheat.trick} ({cheat.problem})": cheat for cheat in ALL}
