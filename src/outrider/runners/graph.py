"""Reading a language model's graph: where its logits come from, its residual stream, its matrices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13

from outrider.errors import ModelError

# Operations that may stand between the vocabulary projection and the result and act on each row alone.
_ROWWISE = frozenset({"Convert", "Multiply", "Divide", "Tanh", "Add"})


def projection(model: Any) -> Any | None:
    """The product that makes logits out of the last hidden state, or None."""
    node = model.get_results()[0].input_value(0).get_node()
    while node.get_type_name() in _ROWWISE:
        node = node.input_value(0).get_node()
    return node if node.get_type_name() == "MatMul" else None


def residual_stream(model: Any) -> list[Any]:
    """The sums of a decoder's residual stream, first to last: two for each layer, or one where they are parallel.

    Raises:
        ModelError: the graph has no such stream.
    """
    product = projection(model)
    near = [product.input_value(0).get_node()] if product is not None else []
    node = None
    while node is None and near:  # through the last norm, nearest first
        node = next((each for each in near if _is_sum(each)), None)
        near = [value.get_node() for each in near for value in each.input_values()]
    found: list[Any] = []
    while node is not None and _is_sum(node):
        found.append(node.output(0))
        branch, other = (value.get_node() for value in node.input_values())
        node = other if branch.get_type_name() == "MatMul" else branch
    if not found:
        raise ModelError("the graph has no residual stream that hidden states can be read from")
    return found[::-1]


def residual_stream_length(directory: Path) -> int:
    """How many sums the residual stream of a model on disk has; see `residual_stream`."""
    return len(residual_stream(read_ir(directory)))


def read_ir(directory: Path) -> Any:
    """The model of a directory, as it was exported.

    Raises:
        ModelError: it cannot be read.
    """
    path = directory / "openvino_model.xml"
    try:
        return ov.Core().read_model(path)
    except RuntimeError as error:
        raise ModelError(f"{path} cannot be read: {str(error).strip().splitlines()[-1]}") from None


def _is_sum(node: Any) -> bool:
    kinds = [value.get_node().get_type_name() for value in node.input_values()]
    return node.get_type_name() == "Add" and len(kinds) == 2 and "MatMul" in kinds


def embedding(model: Any) -> Any | None:
    """The lookup of token embeddings, or None."""
    lookups = (
        op
        for op in model.get_ordered_ops()
        if op.get_type_name() == "Gather" and _leads_to(op.input_value(1).get_node(), "input_ids")
    )
    return next(lookups, None)


def matrices(directory: Path) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """A model's token embeddings and its vocabulary projection, both of shape [vocabulary, width].

    Raises:
        ModelError: the graph has no such matrices.
    """
    model = read_ir(directory)
    lookup, product = embedding(model), projection(model)
    if product is None or lookup is None:
        raise ModelError(f"{directory} has no token embeddings or no vocabulary projection that can be read")
    return constant(lookup.input_value(0)), turned(product, constant(product.input_value(1)))


def turned(product: Any, matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """A product's matrix with a row for each of its outputs; or such a matrix, as the product takes it."""
    return matrix if product.get_attributes()["transpose_b"] else np.ascontiguousarray(matrix.T)


def _leads_to(node: Any, name: str) -> bool:
    while node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    return node.get_type_name() == "Parameter" and name in node.output(0).get_names()


def constant(value: Any) -> NDArray[np.float32]:
    """What a part of a graph without inputs comes to."""
    part = ov.Model([opset13.convert(value, np.float32)], [])
    result = ov.Core().compile_model(part, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([])[0]
    return np.array(result, np.float32)
