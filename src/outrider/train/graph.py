"""A model's own graph in torch, so that what is trained is what will serve.

The graph is taken as the runner takes it, with paged attention in it, and each operation is done by its torch
counterpart; attention is causal over whole sequences. Matrices are parameters, everything else stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from openvino._offline_transformations import paged_attention_transformation
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)

from outrider.errors import ModelError
from outrider.runners.surgery import logits_of, weights_of

AGREE = 0.02
"""Most that logits of the two may differ."""
_PROBE = 24
_TYPES = {
    "f32": torch.float32, "f16": torch.float32, "bf16": torch.float32, "i32": torch.int64, "i64": torch.int64,
    "boolean": torch.bool, "i8": torch.int64, "u8": torch.int64,
}  # fmt: skip
_ATTENTION = "PagedAttentionExtension"
_SCALE, _WINDOW, _ALIBI = 9, 10, 11
"""Inputs of the paged attention that are constants."""


class Graph(nn.Module):
    """See the module.

    Args:
        model: a stateful OpenVINO model.

    Raises:
        ModelError: it has operations that are not known here, or does not give what OpenVINO gives.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        weights = weights_of(model)
        self._head = int(model.get_variables()[0].info.data_shape[-1].get_length())
        paged = model.clone()
        paged_attention_transformation(paged)
        self._matrices = nn.ParameterDict(
            {_key(name): nn.Parameter(torch.from_numpy(matrix.copy())) for name, matrix in weights.items()}
        )
        self._names = {_key(name): name for name in weights}
        self._constants: dict[str, Tensor] = {}
        self._program: list[Any] = []
        self._result = _source(paged.get_results()[0].input_value(0))
        self._shape = (1, 1)
        self._write(paged)
        self._agrees(model)

    @torch.no_grad()
    def _write(self, model: Any) -> None:
        """Put operations that depend on the tokens in order, and do all others now."""
        needed = self._needed(model)
        for op in model.get_ordered_ops():
            name, kind = op.get_friendly_name(), op.get_type_name()
            if name not in needed or kind == "Parameter":
                continue
            if kind == "Constant":
                self._constants[_source(op.output(0))] = _tensor(op.data)
                continue
            if kind not in _DO and kind != _ATTENTION:
                raise ModelError(f"the graph has a {kind} ({name}), which cannot be trained through")
            sources = self._sources(op)
            if _key(name) not in self._matrices and all(source in self._constants for source in sources):
                done = _DO[kind]([self._constants[source] for source in sources], op.get_attributes())
                self._keep(self._constants, op, done)
            else:
                self._program.append(op)
        used = {source for op in self._program for source in self._sources(op)}
        for number, source in enumerate(sorted(used & self._constants.keys())):
            self.register_buffer(f"constant_{number}", self._constants[source], persistent=False)
            self._constants[source] = torch.tensor(number)

    def _needed(self, model: Any) -> set[str]:
        """Names of the operations that the logits come from; what a trained matrix was made of is none."""
        found: set[str] = set()
        waiting = [model.get_results()[0].input_value(0).get_node()]
        while waiting:
            op = waiting.pop()
            name = op.get_friendly_name()
            if name in found:
                continue
            found.add(name)
            if op.get_type_name() == _ATTENTION:
                self._check_attention(op)
            waiting += [value.get_node() for value in self._inputs(op)]
        return found

    def _check_attention(self, op: Any) -> None:
        constants = [op.input_value(place).get_node() for place in (_SCALE, _WINDOW, _ALIBI)]
        if any(node.get_type_name() != "Constant" for node in constants):
            raise ModelError("the scale of the attention is no constant; it cannot be trained through")
        _, window, alibi = (node.data for node in constants)
        if window.any() or alibi.size:
            raise ModelError("attention with a sliding window or slopes cannot be trained through")

    def _inputs(self, op: Any) -> list[Any]:
        """What it is computed from; a trained matrix and a KV cache are none of it."""
        inputs: list[Any] = op.input_values()
        if op.get_type_name() == _ATTENTION:
            inputs = inputs[:3]
        elif _key(op.get_friendly_name()) in self._matrices:
            inputs = inputs[1:] if op.get_type_name() == "Gather" else inputs[:1]
        return inputs

    def _sources(self, op: Any) -> list[str]:
        return [_source(value) for value in self._inputs(op)]

    @staticmethod
    def _keep(values: dict[str, Tensor], op: Any, done: Tensor | Sequence[Tensor]) -> None:
        for number, value in enumerate((done,) if isinstance(done, Tensor) else done):
            values[_source(op.output(number))] = value

    def _agrees(self, model: Any) -> None:
        tokens = [(7919 * place + 11) % len(self.table) for place in range(_PROBE)]
        with torch.no_grad():
            ours = self(torch.tensor([tokens]))[0].numpy()
        theirs = logits_of(model, tokens)
        apart = float(np.abs(ours - theirs).max())
        if not apart <= AGREE * max(1.0, float(np.abs(theirs).max())):
            raise ModelError(f"the graph in torch gives logits that differ by {apart:.3g}; it cannot be trained")

    @property
    def table(self) -> Tensor:
        """The token embeddings, shape [tokens, width]."""
        table: Tensor = next(iter(self._matrices.values()))
        return table

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits after each token of sequences that all begin at position 0.

        Args:
            tokens: shape [sequences, length].

        Returns:
            Shape [sequences, length, vocabulary].
        """
        self._shape = (tokens.shape[0], tokens.shape[1])
        places = torch.arange(tokens.shape[1], device=tokens.device).repeat(tokens.shape[0])
        given = {"input_ids": tokens.flatten(), "position_ids": places}
        values: dict[str, Tensor] = {}
        for op in self._program:
            inputs = [self._value(values, given, source) for source in self._sources(op)]
            key = _key(op.get_friendly_name())
            if key in self._matrices:
                matrix = self._matrices[key]
                inputs = [matrix, *inputs] if op.get_type_name() == "Gather" else [*inputs, matrix]
            if op.get_type_name() == _ATTENTION:
                scale = float(op.input_value(_SCALE).get_node().data)
                self._keep(values, op, self._attend(inputs, scale))
            else:
                self._keep(values, op, _DO[op.get_type_name()](inputs, op.get_attributes()))
        return values[self._result].reshape(*tokens.shape, -1)

    def _value(self, values: dict[str, Tensor], given: dict[str, Tensor], source: str) -> Tensor:
        if source in values:
            return values[source]
        if source in self._constants:
            found: Tensor = getattr(self, f"constant_{int(self._constants[source])}")
            return found
        name = source.rpartition(":")[0]
        if name not in given:
            raise ModelError(f"the graph needs {name}, which is not known in training")
        return given[name]

    def _attend(self, inputs: Sequence[Tensor], scale: float) -> Tensor:
        q, k, v = (x.reshape(*self._shape, -1, self._head).transpose(1, 2) for x in inputs)
        groups = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
        return found.transpose(1, 2).reshape(inputs[0].shape[0], -1)

    def weights(self) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
        """Matrices by the name of the operation that uses each."""
        return {self._names[key]: value.detach().cpu().numpy() for key, value in self._matrices.items()}


def _key(name: str) -> str:
    return name.replace(".", "·")


def _source(value: Any) -> str:
    return f"{value.get_node().get_friendly_name()}:{value.get_index()}"


def _tensor(data: Any) -> Tensor:
    array = np.array(data)
    if array.dtype.kind in "iu":
        array = array.astype(np.int64)
    elif array.dtype.kind == "f":
        array = array.astype(np.float32)
    return torch.from_numpy(array)


# --- operations ----------------------------------------------------------------------------------------------

Attributes = dict[str, Any]


def _gather(x: Sequence[Tensor], given: Attributes) -> Tensor:
    data, places, axis = x
    if given.get("batch_dims"):
        raise ModelError("a Gather over a batch cannot be trained through")
    where = int(axis) % data.dim()
    found = data.index_select(where, (places.flatten().long() + data.shape[where]) % data.shape[where])
    return found.reshape((*data.shape[:where], *places.shape, *data.shape[where + 1 :]))


def _reshape(x: Sequence[Tensor], given: Attributes) -> Tensor:
    data, shape = x
    wanted = [int(n) for n in shape]
    if given["special_zero"]:
        wanted = [data.shape[i] if n == 0 else n for i, n in enumerate(wanted)]
    return data.reshape(wanted)


def _broadcast(x: Sequence[Tensor], given: Attributes) -> Tensor:
    data, shape = x[0], [int(n) for n in x[1]]
    if given["mode"] == "bidirectional":
        shape = list(torch.broadcast_shapes(data.shape, shape))  # type: ignore[no-untyped-call]
    return data.broadcast_to(shape)


def _slice(x: Sequence[Tensor], _: Attributes) -> Tensor:
    data, starts, stops, steps = x[:4]
    axes = x[4] if len(x) > 4 else range(len(starts))
    cut = [slice(None)] * data.dim()
    for axis, start, stop, step in zip(axes, starts, stops, steps, strict=True):
        cut[int(axis)] = slice(int(start), int(stop), int(step))
    return data[tuple(cut)]


def _matmul(x: Sequence[Tensor], given: Attributes) -> Tensor:
    a, b = x
    return (a.transpose(-1, -2) if given["transpose_a"] else a) @ (b.transpose(-1, -2) if given["transpose_b"] else b)


def _mean(x: Sequence[Tensor], given: Attributes) -> Tensor:
    axes = [int(n) for n in x[1].flatten()]
    return x[0].mean(axes, keepdim=bool(given["keep_dims"]))


def _sum(x: Sequence[Tensor], given: Attributes) -> Tensor:
    return x[0].sum([int(n) for n in x[1].flatten()], keepdim=bool(given["keep_dims"]))


def _unsqueeze(x: Sequence[Tensor], _: Attributes) -> Tensor:
    data = x[0]
    for axis in sorted(int(n) for n in x[1].flatten()):
        data = data.unsqueeze(axis)
    return data


def _squeeze(x: Sequence[Tensor], _: Attributes) -> Tensor:
    return x[0].squeeze([int(n) for n in x[1].flatten()]) if len(x) > 1 else x[0].squeeze()


def _split(x: Sequence[Tensor], given: Attributes) -> Sequence[Tensor]:
    return x[0].chunk(int(given["num_splits"]), int(x[1]))


def _variadic(x: Sequence[Tensor], _: Attributes) -> Sequence[Tensor]:
    lengths = [int(n) for n in x[2]]
    rest = x[0].shape[int(x[1])] - sum(n for n in lengths if n >= 0)
    parts: Sequence[Tensor] = torch.split(x[0], [rest if n < 0 else n for n in lengths], int(x[1]))
    return parts


def _swish(x: Sequence[Tensor], _: Attributes) -> Tensor:
    return x[0] * torch.sigmoid(x[0] * x[1] if len(x) > 1 else x[0])


def _gelu(x: Sequence[Tensor], given: Attributes) -> Tensor:
    return F.gelu(x[0], approximate="tanh" if str(given["approximation_mode"]).lower() == "tanh" else "none")


_DO: dict[str, Callable[[Sequence[Tensor], Attributes], Any]] = {
    "Convert": lambda x, given: x[0].to(_TYPES[given["destination_type"]]),
    "Gather": _gather,
    "Reshape": _reshape,
    "Broadcast": _broadcast,
    "Slice": _slice,
    "MatMul": _matmul,
    "ReduceMean": _mean,
    "ReduceSum": _sum,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Split": _split,
    "VariadicSplit": _variadic,
    "Swish": _swish,
    "Gelu": _gelu,
    "Transpose": lambda x, _: x[0].permute([int(n) for n in x[1]]),
    "ShapeOf": lambda x, _: torch.tensor(x[0].shape),
    "Concat": lambda x, given: torch.cat(list(x), int(given["axis"])),
    "Add": lambda x, _: x[0] + x[1],
    "Subtract": lambda x, _: x[0] - x[1],
    "Multiply": lambda x, _: x[0] * x[1],
    "Divide": lambda x, _: x[0] / x[1],
    "Power": lambda x, _: x[0] ** x[1],
    "Sqrt": lambda x, _: x[0].sqrt(),
    "Sin": lambda x, _: x[0].sin(),
    "Cos": lambda x, _: x[0].cos(),
    "Tanh": lambda x, _: x[0].tanh(),
    "Sigmoid": lambda x, _: x[0].sigmoid(),
    "Relu": lambda x, _: x[0].relu(),
}
