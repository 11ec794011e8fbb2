"""The controller played over known answers at known costs: what its rules are worth without the machine's noise.

The model answers each prompt once and its passes are measured once; then `auto` goes through the answers again and
again, in another order of the requests each time, with the engine's proposers and controller and without a forward
pass. A pass takes what was measured, times a random factor, and more where it follows one of the other kind. So
differences of a percent between rules can be seen, which in a real run drown.

python benchmarks/policy_replay.py --prompts spec_bench.jsonl --json benchmarks/results/policy_replay.json
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.api import Engine, chat
from outrider.control import AutoController, Candidate, CostModel, Load
from outrider.evaluate.machine import provenance
from outrider.evaluate.prompts import read_prompts
from outrider.params import Speculation
from outrider.proposers import Context, PromptLookup, Proposal, Proposer, Suffix

_AUTO = Speculation(mode="auto")
_NOISE = 0.05
"""Deviation of the logarithm of a pass's time."""


@dataclass(frozen=True)
class Answer:
    """What the model says."""

    category: str
    prompt: list[int]
    tokens: list[int]


class Passes:
    """How long passes take, as measured, with noise."""

    def __init__(self, measured: dict[str, Any], seed: int) -> None:
        self._model = CostModel.from_json(measured)
        self._switch, self._back = measured["switch"], measured["back"]
        self._random = random.Random(seed)
        self._was_plain = True

    def plain(self, context: int) -> float:
        """Seconds of a pass over one token, without noise."""
        return self._model.seconds(Load(1, context, 1))

    def taken(self, load: Load) -> float:
        """Seconds of the next pass."""
        plain = load.width == 1
        seconds = self._model.seconds(load)
        if plain != self._was_plain:
            seconds += self._back if plain else self._switch
        self._was_plain = plain
        return seconds * self._random.lognormvariate(0.0, _NOISE)


def play(answer: Answer, key: str, controller: AutoController, passes: Passes, drafting: float) -> tuple[float, float]:
    """Seconds of an answer behind its first token, by `auto` and plainly.

    Args:
        answer: what is said.
        key: of the request.
        controller: learns from it.
        passes: how long they take.
        drafting: seconds that a draft takes.
    """
    proposers: list[Proposer] = [Suffix(None), PromptLookup()]
    said = answer.tokens
    tokens = answer.prompt + said[:1]
    context = Context(key, tokens, len(answer.prompt), tenant=None)
    position, auto, plain = 1, 0.0, 0.0
    while position < len(said):
        candidate = Candidate(key, _AUTO, len(said) - position - 1, len(tokens))
        made: list[Proposal] = []
        for proposer in proposers:
            (budget,) = controller.budgets(proposer.name, [candidate], [made])
            if budget > 0:
                auto += drafting
                (draft,) = proposer.propose([context], [budget])
                if draft.tokens:
                    made.append(Proposal(proposer.name, draft))
        (choice,) = controller.choose([candidate], [made], Load(1, len(tokens), 1))
        drafted = made[choice.proposal].draft.tokens[: choice.window] if choice.window else ()
        accepted = next((i for i, token in enumerate(drafted) if said[position + i] != token), len(drafted))
        emitted = said[position : position + accepted + 1]
        load = Load(1 + choice.window, (1 + choice.window) * len(tokens), 1)
        seconds = passes.taken(load)
        auto += seconds
        plain += sum(passes.plain(len(tokens) + i) for i in range(len(emitted)))
        controller.observe_pass(load, seconds)
        controller.observe(key, made, choice, emitted)
        tokens += emitted
        position += len(emitted)
        for proposer in proposers:
            proposer.observe(key, emitted)
    for proposer in proposers:
        proposer.release(context)
    controller.release(key)
    return auto, plain


def replay(answers: Sequence[Answer], measured: dict[str, Any], repeat: int, drafting: float) -> dict[str, Any]:
    """Speed of `auto` over plain decoding: of all, by category, and of single answers."""
    by_category: dict[str, list[float]] = defaultdict(list)
    overall, single = [], []
    for seed in range(repeat):
        passes = Passes(measured, seed)
        controller = AutoController(CostModel.from_json(measured))
        order = list(range(len(answers)))
        random.Random(seed).shuffle(order)
        spent: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for number in order:
            spent[answers[number].category].append(play(answers[number], str(number), controller, passes, drafting))
        for category, pairs in spent.items():
            by_category[category].append(_ratio(pairs))
            single += [_ratio([pair]) for pair in pairs]
        overall.append(_ratio([pair for pairs in spent.values() for pair in pairs]))
    single.sort()
    return {
        "overall": round(statistics.fmean(overall), 3),
        "spread": round(max(overall) - min(overall), 3),
        "by_category": {name: round(statistics.fmean(found), 3) for name, found in sorted(by_category.items())},
        "answers": {
            "worst": round(single[0], 3),
            "worst_of_twenty": round(single[len(single) // 20], 3),
            "share_below_0.98": round(sum(ratio < 0.98 for ratio in single) / len(single), 3),
        },
    }


def _ratio(pairs: Sequence[tuple[float, float]]) -> float:
    return sum(plain for _, plain in pairs) / sum(auto for auto, _ in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="append", help="may be given several times")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--per-category", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--repeat", type=int, default=16, help="orders of the requests")
    parser.add_argument("--drafting-us", type=float, default=50.0, help="microseconds that a draft takes")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    prompts = read_prompts(args.prompts, args.per_category)
    models: dict[str, Any] = {}
    for model in args.model or ["smollm2-135m", "smollm2-135m-q4"]:
        with Engine(model, prefix_caching=False, store_tokens=0, max_running=8) as engine:
            assert engine.controller.cost is not None
            measured = engine.controller.cost.as_json()
            given = engine.generate_batch(
                [chat(prompt.text) for prompt in prompts], max_tokens=args.max_tokens, speculation="off"
            )
        answers = [
            Answer(prompt.category, answer.prompt_ids, answer.completions[0].token_ids)
            for prompt, answer in zip(prompts, given, strict=True)
            if len(answer.completions[0].token_ids) > 1
        ]
        models[model] = {
            **replay(answers, measured, args.repeat, 1e-6 * args.drafting_us),
            "answers_played": len(answers),
            "pass_ms": {width: round(1e3 * seconds, 1) for width, seconds in measured["curve"].items()},
            "change_ms": [round(1e3 * measured[name], 1) for name in ("switch", "back")],
        }
    result = {**provenance(), "repeat": args.repeat, "max_tokens": args.max_tokens, "models": models}
    print(json.dumps(result, indent=2))
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
