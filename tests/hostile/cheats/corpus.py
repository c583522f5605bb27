"""All cheats, each under a name made from what it does."""

from tests.hostile.cheats.attacked_harness import ATTACKED_HARNESS
from tests.hostile.cheats.by_check import STOPPED
from tests.hostile.cheats.cheat import Cheat
from tests.hostile.cheats.hidden_libraries import HIDDEN_LIBRARIES
from tests.hostile.cheats.hostile_words import HOSTILE_WORDS
from tests.hostile.cheats.no_kernels import NO_KERNELS
from tests.hostile.cheats.reused_results import REUSED_RESULTS
from tests.hostile.cheats.wrong_results import WRONG_RESULTS

ALL = [*WRONG_RESULTS, *REUSED_RESULTS, *ATTACKED_HARNESS, *NO_KERNELS, *HIDDEN_LIBRARIES, *HOSTILE_WORDS, *STOPPED]
CHEATS: dict[str, Cheat] = {f"{cheat.trick} ({cheat.problem})": cheat for cheat in ALL}
