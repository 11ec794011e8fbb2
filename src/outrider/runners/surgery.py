"""Cutting a smaller model out of a model's graph: fewer layers, fewer tokens, and weights that were trained further."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from outrider.errors import ModelError
from outrider.runners.graph import constant, embedding, projection, read_ir, residual_stream, turned
from outrider.runners.weights import kept

_ATTENTION = "ScaledDotProductAttention"


def layers_of(directory: Path) -> int:
    """How many layers a model on disk has.

    Raises:
        ModelError: its graph is not one layer after another.
    """
    return len(_layer_inputs(read_ir(directory))) - 1


def _layer_inputs(model: Any) -> list[Any]:
    """What each layer reads from the residual stream, and what the last norm reads."""
    stream = residual_stream(model)
    count = sum(op.get_type_name() == _ATTENTION for op in model.get_ops())
    if count == 0 or len(stream) % count:
        raise ModelError(f"{count} attentions and {len(stream)} sums are no stack of layers; it cannot be pruned")
    first, second = stream[0].get_node().input_values()
    start = second if first.get_node().get_type_name() == "MatMul" else first
    each = len(stream) // count
    return [start, *stream[each - 1 :: each]]


def prune(directory: Path, layers: Sequence[int], ids: NDArray[np.int64]) -> Any:
    """A model of some of the layers and tokens of a model on disk.

    Args:
        directory: of the model.
        layers: numbers of those that stay, rising.
        ids: tokens that stay; the new model's token i is `ids[i]`, and one more stands for all others, with the mean
            embedding and a score of 0.

    Returns:
        A stateful OpenVINO model.

    Raises:
        ModelError: its graph cannot be cut.
    """
    model = read_ir(directory)
    inputs = _layer_inputs(model)
    source = inputs[0]
    for layer in (*layers, len(inputs) - 1):
        if inputs[layer] is not source:
            for reader in inputs[layer].get_target_inputs():
                reader.replace_source_output(source)
        source = inputs[min(layer + 1, len(inputs) - 1)]
    needed = {op.get_attributes()["variable_id"] for op in _behind(model) if op.get_type_name() == "ReadValue"}
    for sink in model.get_sinks():
        name = sink.get_attributes()["variable_id"]
        if name not in needed:
            model.remove_sink(sink)
            model.remove_variable(model.get_variable_by_id(name))
    table, out = embedding(model), projection(model)
    if table is None or out is None or not table.input_value(0).get_element_type().is_real():
        raise ModelError(f"{directory} has no token embeddings or no vocabulary projection that can be cut")
    rows = constant(table.input_value(0))
    _replace(table, 0, np.concatenate((rows[ids], rows.mean(0, keepdims=True))), 16)
    scores = turned(out, constant(out.input_value(1)))[ids]
    _replace(out, 1, turned(out, np.concatenate((scores, np.zeros_like(scores[:1])))), 16)
    model.validate_nodes_and_infer_types()
    return model


def _behind(model: Any) -> list[Any]:
    """Every operation that the model's result needs."""
    found: dict[str, Any] = {}
    waiting = list(model.get_results())
    while waiting:
        node = waiting.pop()
        if node.get_name() not in found:
            found[node.get_name()] = node
            waiting += [value.get_node() for value in node.input_values()]
    return list(found.values())


def _replace(op: Any, place: int, matrix: NDArray[np.float32], bits: int) -> None:
    op.input(place).replace_source_output(kept(matrix, bits).output(0))


def _carriers(model: Any) -> list[tuple[Any, int]]:
    """The operations that have a matrix of weights, and at which input."""
    found = [(embedding(model), 0)]
    constants: set[str] = set()
    for op in model.get_ordered_ops():
        inputs = [value.get_node().get_name() for value in op.input_values()]
        if op.get_type_name() == "Constant" or (inputs and constants.issuperset(inputs)):
            constants.add(op.get_name())
        elif op.get_type_name() == "MatMul" and inputs[1] in constants:
            found.append((op, 1))
    return found


def weights_of(model: Any) -> dict[str, NDArray[np.float32]]:
    """Matrices of a model by the name of the operation that uses each."""
    return {op.get_friendly_name(): constant(op.input_value(place)) for op, place in _carriers(model)}


def set_weights(model: Any, weights: Mapping[str, NDArray[np.float32]], bits: int) -> None:
    """Give a model other matrices, by name as `weights_of` gives them; 8 or 16 bits are kept of each number."""
    for op, place in _carriers(model):
        _replace(op, place, weights[op.get_friendly_name()], bits)


def save(model: Any, directory: Path) -> None:
    """Write a model where a runner finds it."""
    ov.save_model(model, directory / "openvino_model.xml", compress_to_fp16=False)


def logits_of(model: Any, tokens: Sequence[int]) -> NDArray[np.float32]:
    """A model's logits after each of these tokens, shape [tokens, vocabulary]."""
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    count = len(tokens)
    given = {
        "input_ids": np.array([tokens], np.int64),
        "attention_mask": np.ones((1, count), np.int64),
        "position_ids": np.arange(count, dtype=np.int64)[None],
        "beam_idx": np.zeros(1, np.int32),
    }
    names = {port.get_any_name() for port in compiled.inputs}
    found = compiled({name: value for name, value in given.items() if name in names})[0]
    return np.array(found, np.float32).reshape(count, -1)
