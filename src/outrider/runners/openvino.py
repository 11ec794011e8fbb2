"""The OpenVINO runner: paged attention on CPU, logits only for the rows asked for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import openvino as ov
import psutil
from openvino import opset13
from openvino._offline_transformations import paged_attention_transformation

from outrider.errors import InvalidRequest, ModelError
from outrider.runners.base import Logits, RunnerInfo, Segment, States, check_segments
from outrider.runners.graph import projection, residual_stream

KVPrecision = Literal["f32", "f16", "u8"]

_ROWS = "logit_rows"
_STATES = "states"
_STEP_INPUTS = frozenset({
    "input_ids", "position_ids", "past_lens", "subsequence_begins", "block_indices", "block_indices_begins",
    "max_context_len", _ROWS,
})  # fmt: skip


def default_threads() -> int:
    """Physical cores that this process may run on; hyper-threads do not help a memory-bound pass."""
    allowed = len(psutil.Process().cpu_affinity() or [0]) if hasattr(psutil.Process, "cpu_affinity") else 0
    physical = psutil.cpu_count(logical=False) or 1
    return max(1, min(physical, allowed or physical))


def default_kv_bytes() -> int:
    """A quarter of the memory that is free now, at most 1 GiB: a small server's share."""
    return min(int(psutil.virtual_memory().available) // 4, 1 << 30)


def _project_asked_rows_only(model: Any, states: Sequence[int] | None) -> bool:
    """Put a Gather in front of the vocabulary projection; return whether the graph had one to put it at.

    The projection is the widest matrix of a small model: a prefill chunk must not pay for it at every position.

    Args:
        model: changed in place.
        states: points of the residual stream whose values at these rows, and the projection's input after them,
            become a second result; None for no such result.
    """
    node = projection(model)
    if node is None:
        return False
    rows = opset13.parameter([-1], np.int64, name=_ROWS)
    rows.output(0).set_names({_ROWS})
    last = node.input_value(0)
    zero = opset13.constant(0, dtype=np.int64)
    gathered = opset13.gather(last, rows, zero)
    if states is not None:
        stream = residual_stream(model)
        values = [opset13.gather(stream[point], rows, zero).output(0) for point in states] + [gathered.output(0)]
        flat = [
            opset13.reshape(value, opset13.constant([0, value.partial_shape[-1].get_length()], dtype=np.int64), True)
            for value in values
        ]
        asked = opset13.concat(flat, 1)
        asked.output(0).set_names({_STATES})
        model.add_results([opset13.result(asked)])
    node.input(0).replace_source_output(gathered.output(0))
    model.add_parameters([rows])
    model.validate_nodes_and_infer_types()
    return True


class OpenVINORunner:
    """Runs an OpenVINO IR language model on the CPU with a paged KV cache.

    Args:
        directory: holds `openvino_model.xml` and `.bin`, a stateful decoder as Optimum or GenAI export it.
        context_length: positions that the model was made for.
        kv_bytes: memory budget of the KV cache.
        kv_precision: how keys and values are stored. `f16` gave the same text as `f32`; `u8` halves the memory
            and is not exact.
        threads: CPU threads; by default one per physical core.
        states: points of the residual stream (see `residual_stream`) whose values `states` then gives for each row,
            with the last norm's after them; None for none.

    Raises:
        ModelError: the files cannot be read, or the graph has no attention that can be paged.
        InvalidRequest: the budget does not hold even one block.
    """

    def __init__(
        self,
        directory: Path,
        *,
        context_length: int,
        kv_bytes: int | None = None,
        kv_precision: KVPrecision = "f16",
        threads: int | None = None,
        states: Sequence[int] | None = None,
    ) -> None:
        core = ov.Core()
        path = directory / "openvino_model.xml"
        try:
            model = core.read_model(path)
            paged_attention_transformation(model)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1]
            raise ModelError(f"{path} is not a decoder that paged attention fits: {reason}") from None
        self._gathers = _project_asked_rows_only(model, states)
        if states is not None and not self._gathers:
            raise ModelError(f"{path} has no vocabulary projection whose input could be read")
        self.state_width = 0
        """Numbers in a row of `states`; 0 where none are given."""
        self.states: States | None = None
        config = {
            "INFERENCE_PRECISION_HINT": "f32",
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads or default_threads(),
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,  # quantised activations would depend on the batch
            "KV_CACHE_PRECISION": kv_precision,
        }
        compiled = core.compile_model(model, "CPU", config)
        self._request = compiled.create_infer_request()
        if states is not None:
            self.state_width = int(compiled.output(1).partial_shape[-1].get_length())
        self._given = {port.get_any_name() for port in compiled.inputs}
        caches = [port for port in compiled.inputs if "_cache." in port.get_any_name()]
        unknown = self._given - _STEP_INPUTS - {port.get_any_name() for port in caches}
        if not caches or unknown:
            raise ModelError(
                f"{path} needs inputs that this runner does not give: {', '.join(sorted(unknown)) or 'no KV cache'}"
            )
        self._ports = caches
        self._caches: list[np.ndarray[Any, Any]] = []
        self._infer_seconds = 0.0
        # a quantised key block has rows more than tokens, for its scales; a value block has them beside each token
        self.info = RunnerInfo(
            vocabulary=int(compiled.output(0).partial_shape[-1].get_length()),
            context_length=context_length,
            block_size=min(int(port.partial_shape[2].get_length()) for port in caches),
            num_blocks=0,
            block_bytes=sum(self._bytes_per_block(port) for port in caches),
        )
        device = core.get_property("CPU", "FULL_DEVICE_NAME")
        self._setting = f"{device} openvino {ov.__version__} {sorted(config.items())}"
        self.allocate(default_kv_bytes() if kv_bytes is None else kv_bytes)

    def allocate(self, kv_bytes: int) -> None:
        """Make the KV cache anew, within this budget; what was in it is lost.

        Raises:
            InvalidRequest: the budget does not hold even one block.
        """
        info = self.info
        num_blocks = kv_bytes // info.block_bytes
        if num_blocks < 1:
            raise InvalidRequest(
                f"a KV budget of {kv_bytes} bytes holds no block; one block of {info.block_size} tokens needs "
                f"{info.block_bytes}"
            )
        self._caches.clear()
        for port in self._ports:
            shape = [num_blocks if dim.is_dynamic else dim.get_length() for dim in port.partial_shape]
            tensor = ov.Tensor(port.element_type, ov.Shape(shape))
            self._request.set_tensor(port.get_any_name(), tensor)
            self._caches.append(tensor.data)
        self.info = replace(info, num_blocks=num_blocks)

    @property
    def fingerprint(self) -> str:
        """What the cost of a pass depends on, beside the weights."""
        return f"{self._setting} {self.info.num_blocks} blocks"

    @staticmethod
    def _bytes_per_block(port: Any) -> int:
        elements = 1
        for dim in port.partial_shape:
            elements *= 1 if dim.is_dynamic else dim.get_length()
        return int(elements * port.element_type.size)

    @property
    def infer_seconds(self) -> float:
        """Seconds spent inside OpenVINO's infer so far."""
        return self._infer_seconds

    def forward(self, segments: Sequence[Segment]) -> Logits:
        """See `Runner.forward`."""
        info = self.info
        check_segments(segments, info)
        tokens: list[int] = []
        positions: list[int] = []
        past: list[int] = []
        begins = [0]
        blocks: list[int] = []
        block_begins = [0]
        rows: list[int] = []
        longest = 0
        for segment in segments:
            count = len(segment.tokens)
            end = segment.start + count
            tokens.extend(segment.tokens)
            positions.extend(range(segment.start, end))
            past.append(segment.start)
            begins.append(len(tokens))
            blocks.extend(segment.blocks[: -(-end // info.block_size)])
            block_begins.append(len(blocks))
            rows.extend(range(len(tokens) - segment.rows, len(tokens)))
            longest = max(longest, end)
        self._give("input_ids", np.array(tokens, np.int64))
        self._give("position_ids", np.array(positions, np.int64))
        self._give("past_lens", np.array(past, np.int32))
        self._give("subsequence_begins", np.array(begins, np.int32))
        self._give("block_indices", np.array(blocks, np.int32))
        self._give("block_indices_begins", np.array(block_begins, np.int32))
        self._give("max_context_len", np.array(longest, np.int32))
        if self._gathers:
            self._give(_ROWS, np.array(rows or [0], np.int64))  # a projection of no rows is not supported
        started = time.perf_counter()
        self._request.infer()
        self._infer_seconds += time.perf_counter() - started
        if self.state_width:
            self.states = self._request.get_output_tensor(1).data[: len(rows)]
        logits: Logits = self._request.get_output_tensor(0).data.reshape(-1, info.vocabulary)
        return logits[: len(rows)] if self._gathers else logits[rows]

    def _give(self, name: str, value: np.ndarray[Any, Any]) -> None:
        if name in self._given:
            self._request.set_tensor(name, ov.Tensor(value))

    def copy_block(self, source: int, target: int) -> None:
        """See `Runner.copy_block`."""
        for cache in self._caches:
            cache[target] = cache[source]

    def close(self) -> None:
        """Drop the compiled model and the KV cache."""
        self._caches.clear()
        del self._request
