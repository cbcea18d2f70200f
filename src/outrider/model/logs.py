"""Which logs of state a model keeps, and which of them each layer reads (design §4's table)."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.cache.cache import Cache
from outrider.cache.spec import LogSpec
from outrider.config.model import ModelConfig
from outrider.ops.rows import LayerLogs

MTP_WINDOW, MTP_CARRY, MTP_VALID = "mtp_window", "mtp_carry", "mtp_valid"


@dataclass(frozen=True, slots=True)
class LayerAddress:
    """Where one trunk layer's rows lie: its place in the window log, and in the logs of its kind."""

    kind: str
    window: int
    of_kind: int

    def logs(self, cache: Cache) -> LayerLogs:
        """This layer's views on the cache as it is now."""
        window = cache.view("window", self.window)
        if self.kind == "window":
            return LayerLogs(window)
        if self.kind == "hca":
            return LayerLogs(window, cache.view("hca_raw", self.of_kind), cache.view("hca_entries", self.of_kind))
        names = ("csa_raw", "csa_entries", "index_raw", "index_entries")
        return LayerLogs(window, *(cache.view(name, self.of_kind) for name in names))


def layer_addresses(config: ModelConfig) -> tuple[LayerAddress, ...]:
    """One address a trunk layer, in order."""
    seen: dict[str, int] = {}
    addresses = []
    for layer in config.layers:
        addresses.append(LayerAddress(layer.kind, layer.index, seen.get(layer.kind, 0)))
        seen[layer.kind] = seen.get(layer.kind, 0) + 1
    return tuple(addresses)


def trunk_specs(config: ModelConfig) -> tuple[LogSpec, ...]:
    """Logs of the trunk. Raw rows hold u and g; of CSA both have two halves (spec 1 §3)."""
    dim, index_dim = config.head_dim, config.index_head_dim
    csa, hca = config.csa_ratio, config.hca_ratio
    kinds = [layer.kind for layer in config.layers]
    specs = [LogSpec("window", len(kinds), dim, horizon=config.sliding_window)]
    if count := kinds.count("csa"):
        specs += [
            LogSpec("csa_raw", count, 4 * dim, horizon=2 * csa),
            LogSpec("csa_entries", count, dim, stride=csa),
            LogSpec("index_raw", count, 4 * index_dim, horizon=2 * csa),
            LogSpec("index_entries", count, index_dim, stride=csa),
        ]
    if count := kinds.count("hca"):
        specs += [LogSpec("hca_raw", count, 2 * dim, horizon=hca), LogSpec("hca_entries", count, dim, stride=hca)]
    return tuple(specs)


def mtp_specs(config: ModelConfig, *, holes: bool) -> tuple[LogSpec, ...]:
    """Logs of an MTP block: its window, and the carry (target streams of the last committed position). ``holes``
    adds the marks of rows that exist (only the option feed="kept" leaves any out)."""
    window = config.sliding_window
    specs = [
        LogSpec(MTP_WINDOW, 1, config.head_dim, horizon=window),
        LogSpec(MTP_CARRY, 1, config.hc_mult * config.hidden_size, horizon=1, stages="last"),
    ]
    return (*specs, LogSpec(MTP_VALID, 1, 1, horizon=window)) if holes else tuple(specs)
