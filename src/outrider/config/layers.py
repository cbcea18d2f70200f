"""Which layer is of which kind, in either spelling: ``compress_ratios`` or ``layer_types`` (spec 1 §1)."""

from __future__ import annotations

from outrider.config.check import refuse
from outrider.config.fields import Fields, as_integer

CSA, HCA = 4, 128
RATIO_OF_TYPE = {"sliding_attention": 0, "compressed_sparse_attention": CSA, "heavily_compressed_attention": HCA}
DSPARK_BLOCKS = 3


def parse_ratios(top: Fields, mtp_blocks: int | None) -> tuple[int, ...]:
    """One ratio (0, 4 or 128) a trunk layer, then one for each block of the draft head that the file holds.

    ``mtp_blocks`` is how many ``mtp.N`` blocks there are, None where only the config is known. Where the head is
    missing, entries meant for it are dropped. Raises ConfigError for another length or ratio.
    """
    layers = top.integer("num_hidden_layers")
    if not top.has("compress_ratios") and top.has("layer_types"):
        return _ratios_of_types(top, layers) + (0,) * (mtp_blocks or 0)
    key = "compress_ratios"
    ratios = [as_integer(item, f"{key}[{i}]") for i, item in enumerate(top.items(key))]
    for index, ratio in enumerate(ratios):
        if ratio not in (0, 1, CSA, HCA):
            raise refuse(f"{key}[{index}]", ratio, f"0, 1, {CSA} or {HCA}")
    if len(ratios) not in _lengths(top, layers, mtp_blocks):
        blocks = "the draft head's blocks" if mtp_blocks is None else f"{mtp_blocks} mtp.N blocks in the file"
        raise refuse(
            key, ratios, f"{layers} entries for the layers and one for each of {blocks} (it has {len(ratios)})"
        )
    kept = ratios[:layers] if mtp_blocks == 0 else ratios
    return tuple(0 if ratio == 1 else ratio for ratio in kept)


def parse_hash_layers(top: Fields) -> int:
    """How many layers, from the first on, are routed by hash; ``mlp_layer_types`` is the other spelling."""
    if top.has("num_hash_layers") or not top.has("mlp_layer_types"):
        return top.integer("num_hash_layers")
    kinds = top.items("mlp_layer_types")
    count = kinds.count("hash_moe")
    if kinds != ["hash_moe"] * count + ["moe"] * (top.integer("num_hidden_layers") - count):
        raise refuse("mlp_layer_types", kinds, "hash_moe for the first layers, then moe, one entry a layer")
    return count


def _lengths(top: Fields, layers: int, mtp_blocks: int | None) -> set[int]:
    if mtp_blocks:
        return {layers + mtp_blocks}
    declared = top.integer("num_nextn_predict_layers") if top.has("num_nextn_predict_layers") else 0
    return {layers, layers + 1, layers + DSPARK_BLOCKS, layers + declared}


def _ratios_of_types(top: Fields, layers: int) -> tuple[int, ...]:
    if top.has("compress_rates"):
        top.inner("compress_rates").fixed(compressed_sparse_attention=CSA, heavily_compressed_attention=HCA)
    kinds = top.items("layer_types")
    for index, kind in enumerate(kinds):
        if not isinstance(kind, str) or kind not in RATIO_OF_TYPE:
            raise refuse(f"layer_types[{index}]", kind, " or ".join(RATIO_OF_TYPE))
    if len(kinds) != layers:
        raise refuse("layer_types", kinds, f"{layers} entries, one a layer (it has {len(kinds)})")
    return tuple(RATIO_OF_TYPE[kind] for kind in kinds)
