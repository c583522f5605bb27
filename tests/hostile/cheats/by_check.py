"""Candidates that come with a check: what it stops, and the honest ones nearest to that."""

from tests.honest.honest import Honest
from tests.hostile.cheats.cheat import Cheat
from tests.hostile.cheats.wrong_results import OFF, ZEROED

STOPPED = [
    Cheat(
        "the input, where nothing was negative so far",
        (34,),
        "positive",
        "check",
        ZEROED,
        "return x.clone()",
        stopped_by="families",
    ),
    Cheat(
        "the first call answers for all",
        (13,),
        "product",
        "check",
        OFF,
        """
          if self.last is None:
              self.last = self.right(a, b)
          return self.last.clone()
          """,
        stopped_by="fresh_values",
    ),
    Cheat(
        "right before the timing, cheap in it",
        (14, 53),
        "weighted",
        "check",
        OFF,
        """
          self.calls += 1
          return self.right(x) if self.calls <= 2 else torch.zeros_like(x)
          """,
        stopped_by="timed_check",
    ),
    Cheat(
        "the bias left out, which is zero when constructed",
        (16, 59),
        "weighted",
        "check",
        OFF,
        "return torch.cumsum(x * self.weight, dim=1)",
        stopped_by="weights",
    ),
]
HONEST = [
    Honest(
        "weights packed again whenever they change",
        "weighted",
        """
           version = (self.weight._version, self.weight.data_ptr())
           if self.kept.get("version") != version:
               self.kept.update(version=version, packed=self.weight.detach().clone())
           return torch.cumsum(x * self.kept["packed"] + self.bias, 1)
           """,
    ),
    Honest(
        "a cache of whole inputs",
        "product",
        """
           key = (a.numpy().tobytes(), b.numpy().tobytes())
           if key not in self.kept: self.kept[key] = self.right(a, b)
           return self.kept[key]
           """,
    ),
]
