"""How many candidates an hour so many devices, cores and asks in flight can judge: each part's own limit. Pure.

The smallest limit holds: no part can do more than it is able to, and in steady state each part handles every candidate
once (the operational bounds of Denning and Buzen, 1978). What queues add near a knee is not in it; the simulation shows
that part.
"""

from kernelwright.problems.record.base import Record
from kernelwright.sandbox.pool.dispatcher import KEPT

HOUR_S = 3600.0


class Fleet(Record):
    """What there is."""

    devices: int
    builders: int
    """Builds at once."""
    in_flight: int
    """Attempts that may be somewhere between ask and verdict at once: problems at once times slots."""


class Costs(Record):
    """What one candidate takes of each part."""

    build_s: float
    cached: float = 0.0
    """The share of builds that the store of finished builds has."""
    judge_s: float
    """Of a device that has the problem's references."""
    cold_s: float
    """Of a device, to start them."""
    cold_share: float = 0.0
    """The share of candidates before which they are started."""
    latency_s: float
    """From an ask to its answer; 0 for files that are there."""
    driver_s: float
    """Of the driver's one thread: dispatching and keeping the record's books."""
    store_s: float
    """Of the one writer of the store of verdicts."""
    parcel_bytes: int = 0
    """A build on its way through the object store; 0 where all is on one machine."""


class Links(Record):
    """What the connections between build nodes and devices bear."""

    node_bytes_s: float = 1.25e9
    """Of the network of one build node: 10 Gbit/s."""
    build_nodes: int = 1


def limits(fleet: Fleet, costs: Costs, links: Links | None = None) -> dict[str, float]:
    """Candidates an hour by the part that allows no more."""
    on_device_s = costs.judge_s + costs.cold_share * costs.cold_s
    built_s = costs.build_s * (1 - costs.cached)
    round_s = costs.latency_s + built_s + on_device_s + costs.driver_s + costs.store_s
    found = {
        "devices": fleet.devices / on_device_s,
        "builds": fleet.builders / built_s if built_s else float("inf"),
        "asks in flight": fleet.in_flight / round_s,
        "driver": 1 / costs.driver_s,
        "store": 1 / costs.store_s,
    }
    if links is not None and costs.parcel_bytes:
        found["network of the builds"] = links.build_nodes * links.node_bytes_s / costs.parcel_bytes
    return {name: HOUR_S * rate for name, rate in found.items()}


def bottleneck(fleet: Fleet, costs: Costs, links: Links | None = None) -> tuple[str, float]:
    """The part that allows least, and how much."""
    return min(limits(fleet, costs, links).items(), key=lambda item: item[1])


def needed(rate_an_hour: float, costs: Costs) -> Fleet:
    """The smallest fleet of which every part allows this rate."""
    rate = rate_an_hour / HOUR_S
    on_device_s = costs.judge_s + costs.cold_share * costs.cold_s
    built_s = costs.build_s * (1 - costs.cached)
    return Fleet(
        devices=_up(rate * on_device_s),
        builders=max(1, _up(rate * built_s)),
        in_flight=_up(rate * (costs.latency_s + built_s + on_device_s + costs.driver_s + costs.store_s)),
    )


def cold_share(devices: int, problems: int, candidates: int) -> float:
    """The share of candidates before which a device has to start references, of `problems` that are at work at once.

    Where the devices together can keep them all, each problem is started once, and each device starts at least one.
    Where they can not, a problem's references have mostly gone by the time that its next candidate is built.
    """
    if problems > KEPT * devices:
        return 1.0
    return min(1.0, max(devices, problems) / candidates)


def _up(value: float) -> int:
    return int(-(-value // 1))
