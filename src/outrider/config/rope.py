"""Rope settings in every spelling met: ``rope_scaling``, ``rope_parameters``, flat or one set a kind of layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outrider.config.check import refuse
from outrider.config.fields import Fields
from outrider.config.model import Yarn

MAIN = ("main", "sliding_attention")
COMPRESS = ("compress", "compressed_sparse_attention", "heavily_compressed_attention")
BETA_FAST, BETA_SLOW = 32.0, 1.0


@dataclass(frozen=True)
class Rope:
    """``theta`` of window layers; ``compress_theta`` and ``yarn`` of compressed ones (spec 1 §3)."""

    theta: float
    compress_theta: float
    yarn: Yarn | None


def parse_rope(top: Fields) -> Rope:
    """Rope settings of the file; raises ConfigError where two spellings disagree or a kind isn't implemented."""
    found = [top.inner(key) for key in ("rope_scaling", "rope_parameters") if top.has(key)]
    sources = [_by_kind(fields) for fields in found]
    mains = [main for main, _ in sources if main is not None]
    compressed = [fields for _, group in sources for fields in group]
    for main in mains:
        _kind(main, ("default",))
    yarns = [_yarn(fields) for fields in compressed]
    for fields, yarn in zip(compressed, yarns, strict=True):
        if yarn != yarns[0]:
            raise refuse(fields.path.rstrip("."), dict(fields.raw), f"the settings of {compressed[0].path[:-1]}")
    flat = [fields for fields in found if not _nested(fields)]
    return Rope(
        theta=_theta("rope_theta", top, mains + flat),
        compress_theta=_theta("compress_rope_theta", top, [f for f in compressed if f not in flat]),
        yarn=yarns[0] if yarns else None,
    )


def _nested(fields: Fields) -> bool:
    return any(fields.has(kind) for kind in MAIN + COMPRESS)


def _by_kind(fields: Fields) -> tuple[Fields | None, list[Fields]]:
    """(settings of window layers, settings of compressed ones); a flat object speaks of the compressed ones."""
    if not _nested(fields):
        return None, [fields]
    mains = [fields.inner(kind) for kind in MAIN if fields.has(kind)]
    return (mains[0] if mains else None), [fields.inner(kind) for kind in COMPRESS if fields.has(kind)]


def _kind(fields: Fields, allowed: tuple[Any, ...]) -> str:
    kinds = [fields.choice(key, allowed) for key in ("rope_type", "type") if fields.has(key)]
    if len(set(kinds)) > 1:
        raise refuse(fields.path + "type", kinds[1], f"the same as rope_type ({kinds[0]!r})")
    return str(kinds[0]) if kinds else "default"


def _yarn(fields: Fields) -> Yarn | None:
    if _kind(fields, ("yarn", "default")) == "default":
        return None
    fields.fixed(attention_factor=1.0, truncate=True)
    if fields.has("mscale") or fields.has("mscale_all_dim"):
        # equal ones cancel out in the temperature factor, which V4 doesn't apply
        fields.choice("mscale", (fields.raw.get("mscale_all_dim"),))
    return Yarn(
        factor=fields.number("factor"),
        original_max_position_embeddings=fields.integer("original_max_position_embeddings"),
        beta_fast=fields.number("beta_fast") if fields.has("beta_fast") else BETA_FAST,
        beta_slow=fields.number("beta_slow") if fields.has("beta_slow") else BETA_SLOW,
    )


def _theta(key: str, top: Fields, places: list[Fields]) -> float:
    """A rope base, at the top level or within the settings; both may say it, if they agree."""
    named = [(fields.path + "rope_theta", fields.number("rope_theta")) for fields in places if fields.has("rope_theta")]
    if top.has(key) or not named:
        named.insert(0, (key, top.number(key)))
    for path, value in named[1:]:
        if value != named[0][1]:
            raise refuse(path, value, f"the same as {named[0][0]} ({named[0][1]:g})")
    return named[0][1]
