"""The front door: a model by name, an engine around it, synchronous and asyncio."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypedDict, Unpack

from outrider.control import AutoController, CostModel, calibrate, recalled, save_cost
from outrider.draft import SMALLEST_KV, DraftReport, LoadedDraft, LoadedHead, LoadedModel
from outrider.engine import (
    AsyncHandle,
    Chunk,
    EngineConfig,
    EngineCore,
    EngineStats,
    EngineThread,
    Gauges,
    Generation,
    Handle,
    Request,
    StepRecord,
)
from outrider.errors import InvalidRequest
from outrider.grammar import CompiledGrammar, Grammars
from outrider.models import HeadFiles, Manifest, Message, ModelFiles, Progress, Resolver, Tokenizer, silent
from outrider.models.store import home
from outrider.params import Grammar, SamplingParams, Speculation
from outrider.proposers import DEFAULT_PROPOSERS, Proposer, Setup, SuffixStore, make_proposers
from outrider.runners import RunnerInfo
from outrider.runners.openvino import KVPrecision, OpenVINORunner, default_kv_bytes

log = logging.getLogger("outrider")

Prompt = str | Sequence[int] | Sequence[Message]
"""Text as it is, token ids, or the messages of a chat (which the model's template turns into text)."""

Mode = str | Mapping[str, Any] | Speculation
"""How a request speculates: `off`, `auto:4`, `{"mode": "threshold", "disable_below": 0.2}`."""
DEFAULT_STORE_TOKENS = 1 << 20


class Options(TypedDict, total=False):
    """What a request may say beside its prompt: how it is served, and the fields of `SamplingParams`."""

    speculation: Mode | None
    """Overrides the engine's mode for this request: `off`, `auto:4`, or the fields of `Speculation` by name."""
    prediction: str | Sequence[int] | None
    """Text that is expected in the answer, as the file that an edit changes; it is drafted from."""
    grammar: Grammar | CompiledGrammar | None
    """What the answer must look like, as `Grammar.json_schema({...})`, or what `Engine.compile` made of it."""
    tenant: str | None
    """Whose request it is. Answers are remembered for later drafts to the same tenant; None is neither remembered nor
    drafted from what is."""
    timeout: float | None
    """Seconds after which the answer ends with what it has."""
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: dict[int, float]
    seed: int | None
    n: int
    max_tokens: int | None
    min_tokens: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    logprobs: int | None
    echo: bool
    skip_special_tokens: bool


def chat(text: str, system: str | None = None) -> list[Message]:
    """A chat of one user message."""
    head: list[Message] = [Message(role="system", content=system)] if system is not None else []
    return [*head, Message(role="user", content=text)]


def measured_cost(files: ModelFiles, runner: OpenVINORunner | None = None) -> CostModel:
    """What passes cost here: as kept from an earlier start where that still holds, else measured and kept.

    Args:
        files: the model.
        runner: it, loaded and serving nobody yet; None loads it for this.
    """
    own = runner or OpenVINORunner(files.directory, context_length=files.manifest.context_length)
    # what passes cost depends on the weights, the machine and how it is used
    identity = f"{files.manifest.model_dump_json()} {own.fingerprint}"
    path = cost_file(identity)
    cost = recalled(own, path)
    if cost is None:
        cost = calibrate(own)
        save_cost(cost, path)
    if runner is None:
        own.close()
    return cost


def cost_file(identity: str) -> Path:
    """Where the cost of passes is kept for a model, a machine and a way to use it."""
    return home() / "cost" / f"{hashlib.sha256(identity.encode()).hexdigest()[:24]}.json"


class Engine:
    """A language model that answers faster with the same text.

    Args:
        model: a built-in name (`smollm2-135m`), `hf:org/name`, a `.gguf` file, or a directory with OpenVINO IR.
        speculation: `auto`, `threshold`, `fixed:K` or `off`, for requests that do not choose.
        draft: what drafts: a smaller model, named as the model is, which shares the KV memory; or a draft head by its
            name (`smollm2-135m-draft`) or directory, which needs none.
        proposers: what else guesses tokens, by name or made already; each request's draft is the most promising one.
        store_tokens: tokens of earlier answers that the `suffix` proposer remembers, 44 bytes each; 0 for none.
        store_file: where they are read from at the start and written to at the end; by default nowhere.
        kv_memory: bytes for the KV cache; by default a quarter of what is free, at most 1 GiB.
        kv_precision: `f16`, `f32`, or `u8`, which halves the memory and is not exact.
        threads: CPU threads; by default one per physical core.
        progress: told how a pull goes on.
        settings: the other fields of `EngineConfig`.

    Raises:
        ModelError: the model cannot be found, fetched or loaded.
        InvalidRequest: a setting that cannot be honoured.

    Example:
        >>> with Engine("smollm2-135m") as engine:  # doctest: +SKIP
        ...     print(engine.generate(chat("What is a tide?"), max_tokens=64).text)
    """

    def __init__(
        self,
        model: str,
        *,
        speculation: str = "auto",
        draft: str | None = None,
        proposers: str | Sequence[str | Proposer] = DEFAULT_PROPOSERS,
        store_tokens: int = DEFAULT_STORE_TOKENS,
        store_file: Path | None = None,
        kv_memory: int | None = None,
        kv_precision: KVPrecision = "f16",
        threads: int | None = None,
        progress: Progress = silent,
        **settings: Any,
    ) -> None:
        config = EngineConfig(speculation=speculation, **settings)
        resolver = Resolver(progress=progress)
        files = resolver.resolve(model)
        draft_files = resolver.resolve_draft(draft) if draft is not None else None
        head = draft_files if isinstance(draft_files, HeadFiles) else None
        progress("load", 0, 0)
        self.manifest: Manifest = files.manifest
        self._weights_bytes = (files.directory / "openvino_model.bin").stat().st_size
        self.tokenizer = Tokenizer(files.directory, files.manifest.special_ids)
        runner = OpenVINORunner(
            files.directory,
            context_length=files.manifest.context_length,
            kv_bytes=SMALLEST_KV if isinstance(draft_files, ModelFiles) else kv_memory,
            kv_precision=kv_precision,
            threads=threads,
            states=head.card.points if head is not None else None,
        )
        self._grammars = Grammars(self.tokenizer, files.manifest.eos_ids, runner.info.vocabulary)
        self._draft: LoadedDraft | None = None
        if head is not None:
            self._draft = LoadedHead(head, runner, files.manifest.name, threads)
        elif isinstance(draft_files, ModelFiles):
            memory = kv_memory if kv_memory is not None else default_kv_bytes()
            self._draft = LoadedModel(draft_files, runner, self.tokenizer, memory, kv_precision, threads)
        self.info: RunnerInfo = runner.info
        self.store = SuffixStore(store_tokens) if store_tokens else None
        self._store_file = store_file
        if self.store is not None and store_file is not None:
            self.store.load(store_file, self.info.vocabulary)
        setup = Setup(files.manifest.name, self.info.vocabulary, self.info.context_length, self.store)
        named = [name.strip() for name in proposers.split(",")] if isinstance(proposers, str) else proposers
        made = make_proposers([name for name in named if name], setup)
        self._cost_file = cost_file(f"{files.manifest.model_dump_json()} {runner.fingerprint}")
        cost = measured_cost(files, runner)
        self.controller = AutoController(cost, config.objective)
        self.draft: DraftReport | None = None
        """What the draft is and costs, where there is one."""
        if self._draft is not None:
            self.draft = self._draft.report(cost, runner, files)
            if self.draft.advice is not None:
                log.warning("%s", self.draft.advice)
            made.append(self._draft.proposer(self.controller.goes_on))
        core = EngineCore(
            runner,
            self.tokenizer,
            eos_ids=files.manifest.eos_ids,
            proposers=made,
            controller=self.controller,
            config=config,
        )
        self._thread = EngineThread(core)
        progress("load", 1, 1)

    # --- synchronous -----------------------------------------------------------------------------------------

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        **options: Unpack[Options],
    ) -> Generation:
        """Answer one prompt.

        Args:
            prompt: text, token ids, or chat messages.
            params: how tokens are chosen; or give its fields by name among the options.
            options: see `Options`.

        Raises:
            InvalidRequest: the request cannot be honoured.
            QueueFull: too many requests wait.
            EngineClosed: the engine was closed or died.
        """
        return self.stream(prompt, params, **options).result()

    def generate_batch(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | None = None,
        **options: Unpack[Options],
    ) -> list[Generation]:
        """Answer many prompts together, in their order. Arguments and errors as for `generate`."""
        handles: list[Handle] = []
        try:
            for prompt in prompts:
                handles.append(  # noqa: PERF401 (those already open must be cancelled when one is refused)
                    self.stream(prompt, params, **options)
                )
            return [handle.result() for handle in handles]
        except BaseException:
            for handle in handles:
                handle.cancel()
            raise

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        **options: Unpack[Options],
    ) -> Handle:
        """Answer one prompt piece by piece: iterate the handle for chunks. Arguments and errors as for `generate`."""
        return self._thread.submit(self._request(prompt, params, **options))

    # --- asyncio ---------------------------------------------------------------------------------------------

    async def agenerate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        **options: Unpack[Options],
    ) -> Generation:
        """The asyncio twin of `generate`; cancelling the task cancels the request."""
        return await self.submit_async(prompt, params, **options).result_async()

    def astream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        **options: Unpack[Options],
    ) -> AsyncGenerator[Chunk]:
        """The asyncio twin of `stream`; call it inside a running loop."""
        return self.submit_async(prompt, params, **options).chunks()

    def submit_async(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        **options: Unpack[Options],
    ) -> AsyncHandle:
        """Queue a request from a running asyncio loop and return its handle."""
        return self._thread.submit_async(self._request(prompt, params, **options))

    # --- the rest --------------------------------------------------------------------------------------------

    @property
    def stats(self) -> EngineStats:
        """Running totals; read only."""
        return self._thread.stats

    def snapshot(self) -> EngineStats:
        """A copy of the totals between two steps; finished requests are wholly counted in it."""
        return self._thread.snapshot()

    def gauges(self) -> Gauges:
        """What the engine holds now: sequences, blocks, faults of proposers."""
        return self._thread.gauges()

    def set_mode(self, **fields: Any) -> EngineConfig:
        """Change `speculation`, `shrink_below` or `disable_below` for requests that do not choose, while it runs."""
        return self._thread.set_mode(**fields)

    @property
    def settings(self) -> EngineConfig:
        """The engine's settings as they are now."""
        return self._thread.settings

    @property
    def alive(self) -> bool:
        """Whether requests are taken."""
        return self._thread.alive

    @property
    def weights_bytes(self) -> int:
        """Size of the target's weights."""
        return self._weights_bytes

    def trace(self, request: str) -> list[StepRecord]:
        """The steps in which a request decoded, as far as the ring of the last steps goes back."""
        return self._thread.trace(request)

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        ids: list[int] = []
        messages: list[Message] = []
        for part in prompt:
            if isinstance(part, int):
                ids.append(part)
            else:
                messages.append(part)
        if ids and messages:
            raise InvalidRequest("a prompt is text, token ids, or messages, not a mixture")
        return self.tokenizer.chat(messages) if messages else ids

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Compile a grammar ahead of its requests. Takes time for a large one; safe from any thread.

        Raises:
            InvalidRequest: the source is no grammar of its kind, in the compiler's words.
        """
        return self._grammars.compile(grammar)

    def _request(self, prompt: Prompt, params: SamplingParams | None, **options: Unpack[Options]) -> Request:
        fields: dict[str, Any] = dict(options)
        speculation, grammar = fields.pop("speculation", None), fields.pop("grammar", None)
        prediction, tenant = fields.pop("prediction", None) or (), fields.pop("tenant", "")
        timeout = fields.pop("timeout", None)
        if params is not None and fields:
            raise InvalidRequest(f"give params or {', '.join(fields)}, not both")
        return self._thread.request(
            self.encode(prompt),
            params or SamplingParams(**fields),
            prompt_text=prompt if isinstance(prompt, str) else None,
            speculation=speculation,
            prediction=self.tokenizer.encode(prediction) if isinstance(prediction, str) else prediction,
            grammar=self.compile(grammar) if isinstance(grammar, Grammar) else grammar,
            tenant=tenant,
            timeout=timeout,
        )

    def close(self) -> None:
        """End open requests, keep what was learned for the next start, and free the model. Safe to call twice."""
        if not self._thread.alive:
            return
        self._thread.close()
        if self._draft is not None:
            self._draft.close()
        if self.controller.cost is not None and self.stats.steps:
            save_cost(self.controller.cost, self._cost_file)
        if self.store is not None and self._store_file is not None:
            self.store.save(self._store_file, self.info.vocabulary)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
