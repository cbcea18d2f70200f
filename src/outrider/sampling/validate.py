"""Checks a request before it meets the engine: every value and type, and that it fits the model (cases J1 to J3).

Nothing here raises anything but RequestError (``param`` names the field) or, for options that are known but not there
yet, UnsupportedError.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NoReturn

from outrider.core import Sampling
from outrider.errors import RequestError, UnsupportedError

MAX_STOPS = 16
MAX_STOP_LENGTH = 1024
MAX_STOP_TOKEN_IDS = 256
MAX_TEMPERATURE = 1e6
"""Far above any use; it keeps the division of a masked logit finite."""
MAX_INTEGER = 2**31 - 1
"""Largest count that is taken (``max_tokens``, ``top_k``)."""

_NEUTRAL: dict[str, tuple[object, ...]] = {
    "min_tokens": (0, None),
    "presence_penalty": (0, None),
    "frequency_penalty": (0, None),
    "repetition_penalty": (1, None),
    "logit_bias": (None, {}),
    "bad_words": (None, (), []),
    "n": (1, None),
    "logprobs": (None, False),
    "prompt_logprobs": (None, False),
    "grammar": (None,),
    "rule": ("coupled", None),
    "draft": (None,),
    "draft_length": (None,),
}
"""Options of a request that aren't there yet, and the values of each that ask for nothing."""


def make_sampling(**options: Any) -> Sampling:
    """A Sampling from the keywords of ``generate``; ``stop`` may be one string, sequences may be lists.

    Raises RequestError for a keyword that doesn't exist, UnsupportedError for one that isn't there yet. Values are
    checked by ``validate``.
    """
    known = {field.name for field in fields(Sampling)}
    for name, value in options.items():
        if name in _NEUTRAL:
            _refuse_unless_neutral(name, value)
        elif name not in known:
            _refuse(name, f"There is no option {name!r} (there are {', '.join(sorted(known))}).")
    chosen = {name: _frozen(name, value) for name, value in options.items() if name in known}
    return Sampling(**chosen)


def validate(
    sampling: Sampling, *, vocab_size: int, max_length: int, prompt: Sequence[int], has_tokenizer: bool
) -> None:
    """Raises RequestError for the first field that can't be honoured by a model of these sizes.

    ``max_length`` counts prompt and made tokens, so a prompt of ``max_length`` is refused: no token has room.
    ``max_tokens`` 0 is allowed and makes nothing.
    """
    _check_prompt(prompt, vocab_size, max_length)
    if sampling.max_tokens is not None:
        _check_integer("max_tokens", sampling.max_tokens, 0, MAX_INTEGER)
    if sampling.temperature is not None:
        _check_number("temperature", sampling.temperature, 0.0, MAX_TEMPERATURE)
    _check_integer("top_k", sampling.top_k, 0, MAX_INTEGER)
    _check_number("top_p", sampling.top_p, 0.0, 1.0)
    if sampling.top_p == 0.0:
        _refuse("top_p", "top_p is 0, which leaves no token; it must be above 0.", "Use temperature=0 for greedy.")
    _check_number("min_p", sampling.min_p, 0.0, 1.0)
    _check_stops(sampling.stop, has_tokenizer)
    _check_stop_token_ids(sampling.stop_token_ids, vocab_size)
    if not isinstance(sampling.ignore_eos, bool):
        _refuse("ignore_eos", f"ignore_eos is {_show(sampling.ignore_eos)}; it must be True or False.")
    if sampling.seed is not None:
        _check_integer("seed", sampling.seed, -(2**63), 2**64 - 1)


def _refuse(param: str, message: str, hint: str = "") -> NoReturn:
    raise RequestError(message, param=param, hint=hint)


def _show(value: object) -> str:
    """A value as shown in an error: short, however large it is."""
    if isinstance(value, int) and not -(10**24) < value < 10**24:
        return "an integer of more than 24 digits"
    text = repr(value) if isinstance(value, str | int | float | type(None)) else f"of type {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def _refuse_unless_neutral(name: str, value: object) -> None:
    # Types first: what an array or a tensor makes of == isn't a truth value.
    numbers = isinstance(value, int | float) and not isinstance(value, bool)
    neutral = [
        plain
        for plain in _NEUTRAL[name]
        if type(plain) is type(value) or (numbers and isinstance(plain, int) and not isinstance(plain, bool))
    ]
    if value not in neutral:
        raise UnsupportedError(f"{name}={_show(value)} isn't supported yet; leave {name} out.")


def _frozen(name: str, value: Any) -> Any:
    """The immutable form of a field; what isn't a sequence is left for ``validate`` to refuse."""
    if name == "stop":
        value = () if value is None else (value,) if isinstance(value, str) else value
    if name == "stop_token_ids" and value is None:
        value = ()
    return tuple(value) if isinstance(value, list) else value


def _check_integer(name: str, value: object, low: int, high: int, param: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        _refuse(param or name, f"{name} is {_show(value)}; it must be an int.")
    if not low <= value <= high:
        _refuse(param or name, f"{name} is {_show(value)}; it must lie from {low} to {high}.")


def _check_number(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        _refuse(name, f"{name} is {_show(value)}; it must be an int or a float.")
    if not low <= value <= high:  # NaN fails every comparison
        _refuse(name, f"{name} is {_show(value)}; it must lie from {low:g} to {high:g}.")


def _check_prompt(prompt: Sequence[int], vocab_size: int, max_length: int) -> None:
    if len(prompt) == 0:
        _refuse("prompt", "The prompt is empty; it must hold at least one token.")
    if len(prompt) >= max_length:
        message = f"The prompt has {len(prompt)} tokens; there must be fewer than {max_length}, the longest text."
        _refuse("prompt", message, "Shorten it, or raise max_length if it was set below the model's own.")
    for index, id in enumerate(prompt):
        _check_integer(f"prompt[{index}]", id, 0, vocab_size - 1, param="prompt")


def _check_stops(stops: Sequence[str], has_tokenizer: bool) -> None:
    if not isinstance(stops, tuple):
        _refuse("stop", f"stop is {_show(stops)}; it must be a string or a list of strings.")
    if len(stops) > MAX_STOPS:
        _refuse("stop", f"stop holds {len(stops)} strings; at most {MAX_STOPS} are taken.")
    if stops and not has_tokenizer:
        _refuse("stop", "stop needs a tokenizer, and the checkpoint has none.", "Use stop_token_ids.")
    for index, stop in enumerate(stops):
        if not isinstance(stop, str) or not 0 < len(stop) <= MAX_STOP_LENGTH:
            message = f"stop[{index}] is {_show(stop)}; it must be a string of 1 to {MAX_STOP_LENGTH} characters."
            _refuse("stop", message)


def _check_stop_token_ids(ids: Sequence[int], vocab_size: int) -> None:
    if not isinstance(ids, tuple):
        _refuse("stop_token_ids", f"stop_token_ids is {_show(ids)}; it must be a list of token ids.")
    if len(ids) > MAX_STOP_TOKEN_IDS:
        _refuse("stop_token_ids", f"stop_token_ids holds {len(ids)} ids; at most {MAX_STOP_TOKEN_IDS} are taken.")
    for index, id in enumerate(ids):
        _check_integer(f"stop_token_ids[{index}]", id, 0, vocab_size - 1, param="stop_token_ids")
