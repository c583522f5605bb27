"""Strategies: pure functions from the folded log to the next steps.

Others are found in installed packages by the entry-point group `kernelwright.strategies` (a callable that takes a
`SearchConfig` and returns a `Strategy`), or in a file of the user's own.
"""

from kernelwright.agent.strategies.strategy import (
    SHIPPED,
    Step,
    Stop,
    Strategy,
    StrategyError,
    load_strategy,
    strategies,
)

__all__ = ["SHIPPED", "Step", "Stop", "Strategy", "StrategyError", "load_strategy", "strategies"]
