"""Reads genai_config.json, the description of a language model in a folder of onnxruntime-genai."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from .. import files
from ..errors import ModelError

MOST_BYTES = 1 << 24  # maximum bytes of genai_config.json
MOST_LAYERS = 4096


@dataclasses.dataclass(frozen=True)
class Genai:
    """The contents of genai_config.json that `LanguageModel` needs: the path of the model, names of inputs
    and outputs, and sizes."""

    model: Path
    context: int  # maximum number of tokens of a prompt and its continuation together
    ends: frozenset[int]  # tokens that end the text
    shares: bool  # True if past and present share one buffer of length ``context``
    heads: int  # number of heads of keys and values
    width: int  # elements of a head
    ids: str
    mask: str
    places: str
    logits: str
    past: tuple[str, ...]  # names of the past keys and the past values of each layer, in order
    present: tuple[str, ...]


def read_genai(folder: Path) -> Genai:
    """Return the configuration in a folder. Raises ModelError if the file cannot be read, or if an entry is
    missing or wrong."""
    path = folder / "genai_config.json"
    try:
        found = files.parse_json(files.read(path, MOST_BYTES))
        return _read(folder, found)
    except OSError as error:
        raise ModelError(
            f"{path} cannot be read: {error.strerror}; a language model is a folder as onnxruntime-genai's"
            " model builder writes it: genai_config.json, the .onnx file that it names, tokenizer.json"
        ) from error
    except KeyError as error:
        raise ModelError(f"{path}: {error.args[0]!r} is missing") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error


def _read(folder: Path, found: Any) -> Genai:
    if not isinstance(found, dict):
        raise ValueError("the file must hold a JSON object")
    model = found["model"]
    decoder = model["decoder"]
    given, made = decoder["inputs"], decoder["outputs"]
    layers = _whole(decoder, "num_hidden_layers", MOST_LAYERS)
    ends = model.get("eos_token_id", [])
    name = Path(str(decoder["filename"]))
    if name.is_absolute() or ".." in name.parts:
        raise ValueError(f"model.decoder.filename is {str(name)!r}; it must be a file in the folder")
    return Genai(
        folder / name, _whole(model, "context_length", 2**31 - 1),
        frozenset(map(int, ends if isinstance(ends, list) else [ends])),
        bool(found.get("search", {}).get("past_present_share_buffer", False)),
        _whole(decoder, "num_key_value_heads", 2**16), _whole(decoder, "head_size", 2**16),
        given.get("input_ids", "input_ids"), given.get("attention_mask", "attention_mask"),
        given.get("position_ids", "position_ids"), made.get("logits", "logits"),
        _numbered(given, ("past_key_names", "past_value_names"), layers),
        _numbered(made, ("present_key_names", "present_value_names"), layers),
    )  # fmt: skip


def _whole(table: dict[str, Any], name: str, most: int) -> int:
    """Return the entry *name*, an integer from 1 to *most*."""
    number = table[name]
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= most:
        raise ValueError(f"{name} is {number!s:.40}; it must be an integer from 1 to {most}")
    return number


def _numbered(table: dict[str, Any], entries: tuple[str, str], layers: int) -> tuple[str, ...]:
    """Return the names of the two *entries* for each layer. An entry is a name with %d in the place of the
    layer's number."""
    for entry in entries:
        if not isinstance(table[entry], str) or table[entry].count("%") != 1 or "%d" not in table[entry]:
            raise ValueError(f"{entry} is {table[entry]!s:.40}; it must be a name that contains %d once")
    return tuple(table[entry].replace("%d", str(i)) for i in range(layers) for entry in entries)
