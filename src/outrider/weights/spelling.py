"""Every spelling of a tensor's name → the released one (spec 1 §2).

Met so far: the released names with or without ``model.``; ``self_attn``, ``mlp``, ``weight_scale_inv`` and
``e_score_correction_bias`` of converted files; and the names of transformers, both those of its modules and those that
its ``save_pretrained`` writes. Values need no change: transformers keeps every order (interleaved rope pairs, the two
halves of overlapping compressors, groups of o_a_proj), and its fused gate_up_proj is w1's rows, then w3's.
"""

from __future__ import annotations

SEGMENTS = {
    "embed_tokens": "embed",
    "lm_head": "head",
    "self_attn": "attn",
    "mlp": "ffn",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "q_a_proj": "wq_a",
    "q_a_norm": "q_norm",
    "q_b_proj": "wq_b",
    "kv_proj": "wkv",
    "o_a_proj": "wo_a",
    "o_b_proj": "wo_b",
    "sinks": "attn_sink",
    "position_bias": "ape",
    "e_score_correction_bias": "bias",
    "down_proj": "w2",
    "up_proj": "w3",
}
"""One segment of a dotted name, wherever it stands."""

HYPER = {"attn_hc": "hc_attn_", "ffn_hc": "hc_ffn_", "hc_head": "hc_head_"}
SCALES = ("weight_scale_inv", "weight_scale", "scale_inv")
FUSED_SCALE = "_scale_inv"
GATE_UP = "gate_up_proj"
INDEXER_OWN = ("wq_b", "weights_proj")  # all else under transformers' compressor.indexer is its compressor's


def released_name(name: str) -> str:
    """The released name of ``name``; one that isn't understood comes back unchanged in what isn't.

    Fused experts become ``….experts.gate_up_proj.weight`` and ``….experts.w2.weight`` (``.scale``).
    """
    parts = _leaf(name.removeprefix("model.").split("."))
    depth = 2 if parts[0] in ("layers", "mtp") else 0
    local = [SEGMENTS.get(part, part) for part in parts[depth:] if part != "scorer"]
    return ".".join(parts[:depth] + _in_context(local))


def split_fused(name: str) -> tuple[str, str, str] | None:
    """(``….experts.``, ``gate_up_proj`` or ``w2``, ``weight`` or ``scale``) of a released name of fused experts."""
    parts = name.rsplit(".", 3)
    if len(parts) != 4 or parts[1] != "experts" or parts[2] not in (GATE_UP, "w2"):
        return None
    return f"{parts[0]}.experts.", parts[2], parts[3]


def _leaf(parts: list[str]) -> list[str]:
    """Bring the last segment to ``weight`` or ``scale`` where it is spelt otherwise."""
    last = parts[-1]
    if last in SCALES:
        return [*parts[:-1], "scale"]
    if parts[-2:-1] == ["experts"] and last.removesuffix(FUSED_SCALE) in (GATE_UP, "down_proj"):
        return [*parts[:-1], last.removesuffix(FUSED_SCALE), "scale" if last.endswith(FUSED_SCALE) else "weight"]
    return parts


def _in_context(local: list[str]) -> list[str]:
    """The renames that depend on where a segment stands; ``local`` is a name without its layer."""
    if len(local) == 2 and local[0] in HYPER:
        return [HYPER[local[0]] + local[1].removeprefix("hc_")]
    if local[:2] == ["attn", "norm"]:
        return ["attn", "kv_norm", *local[2:]]
    if local[:3] == ["attn", "compressor", "indexer"]:
        rest = local[3:]
        local = (
            ["attn", "indexer", *rest]
            if rest[:1] and rest[0] in INDEXER_OWN
            else ["attn", "indexer", "compressor", *rest]
        )
    if "compressor" in local:
        renamed = {"gate_proj": "wgate", "kv_norm": "norm"}
    elif "ffn" in local:
        renamed = {"gate_proj": "w1"}
    else:
        renamed = {}
    return [renamed.get(part, part) for part in local]
