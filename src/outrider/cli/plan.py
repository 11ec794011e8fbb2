"""`outrider plan`: capacity before deployment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.output import write
from outrider.errors import InvalidRequest


def parse_acceptance(text: str) -> tuple[float, ...]:
    """Read an acceptance: `0.7`, `0.8,0.7,0.6` by position, or a file that `assess` or `draft eval` wrote.

    Raises:
        InvalidRequest: none of these.
    """
    path = Path(text)
    if path.is_file():
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            overall = found["overall"]
            if "acceptance" in overall:
                return tuple(overall["acceptance"])
            best = max(overall["proposers"], key=lambda each: each["windows"][3]["tokens_per_pass"])
            return tuple(share for share in best["acceptance_by_position"] if share is not None)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise InvalidRequest(f"{path} is of neither assess nor draft eval ({error!r})") from None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InvalidRequest(
            f"--acceptance {text!r} is no probability, no list of them by comma, and no file"
        ) from None


def plan(
    target: Annotated[str, typer.Option(help="config.json or its directory, a size as 70B, or a known name.")],
    accelerator: Annotated[str, typer.Option(help="Device, as a100-80 or h100.")],
    acceptance: Annotated[
        str, typer.Option(help="Accepted share: 0.7, by position 0.8,0.7, or the JSON of assess or draft eval.")
    ],
    draft: Annotated[str | None, typer.Option(help="A draft model, named as the target is; none for lookup.")] = None,
    drafting_share: Annotated[
        float, typer.Option(help="Cost of a draft token over a plain pass, without a draft model.", min=0)
    ] = 0.0,
    accelerators: Annotated[
        Path | None, typer.Option(help="JSON with a list of devices of your own.", dir_okay=False)
    ] = None,
    tp: Annotated[int, typer.Option("--tp", help="Devices that a replica is split over.", min=1)] = 1,
    precision: Annotated[str, typer.Option(help="Weights: f32, f16, f8, i8 or i4.")] = "f16",
    draft_precision: Annotated[str, typer.Option(help="The draft's weights.")] = "f16",
    rate: Annotated[float, typer.Option(help="Requests per second.", min=1e-6)] = 1.0,
    prompt_tokens: Annotated[float, typer.Option(help="Mean tokens of a prompt.", min=1)] = 1000,
    output_tokens: Annotated[float, typer.Option(help="Mean tokens of an answer.", min=1)] = 250,
    trace: Annotated[
        Path | None, typer.Option(help="Arrivals and lengths: Azure's CSV or Mooncake's JSON lines.", dir_okay=False)
    ] = None,
    trace_limit: Annotated[int, typer.Option(help="Requests of the trace that are played.", min=2)] = 2000,
    ttft_ms: Annotated[float | None, typer.Option(help="Target for the time to first token.", min=0.001)] = None,
    itl_ms: Annotated[float | None, typer.Option(help="Target for the time between tokens.", min=0.001)] = None,
    max_window: Annotated[int, typer.Option(help="Draft tokens at most.", min=1, max=12)] = 8,
    max_batch: Annotated[int, typer.Option(help="Sequences at most.", min=1)] = 512,
    calibrate: Annotated[
        Path | None, typer.Option(help="Measured passes, as benchmarks/grid.py writes them, instead of data sheets.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write everything to this file.")] = None,
    html_file: Annotated[Path | None, typer.Option("--html", help="Write a report to this file.")] = None,
) -> None:
    """Plan capacity: memory, batch, latency, throughput and cost, with and without speculation.

    Example: outrider plan --target llama-3-70b --draft llama-3.2-1b --accelerator h100 --tp 8 --acceptance 0.7
    """
    from pydantic import ValidationError

    from outrider import console
    from outrider.params import explain
    from outrider.plan import Costs, Deployment, roofline_costs
    from outrider.plan import plan as work_out
    from outrider.plan.hardware import find_accelerator, find_shape
    from outrider.plan.report import plan_html
    from outrider.plan.roofline import Calibrated, held_out_errors, read_points
    from outrider.plan.simulate import at_rate, poisson, read_trace, simulate

    arrivals = read_trace(trace, trace_limit) if trace is not None else None
    if arrivals is not None:
        prompt_tokens = sum(arrival.prompt_tokens for arrival in arrivals) / len(arrivals)
        output_tokens = sum(arrival.output_tokens for arrival in arrivals) / len(arrivals)
    try:
        deployment = Deployment.model_validate(
            {
                "target": find_shape(target),
                "draft": find_shape(draft) if draft is not None else None,
                "accelerator": find_accelerator(accelerator, accelerators),
                "tensor_parallel": tp,
                "precision": precision,
                "draft_precision": draft_precision,
                "acceptance": parse_acceptance(acceptance),
                "drafting_share": drafting_share,
                "prompt_tokens": prompt_tokens,
                "output_tokens": output_tokens,
                "requests_per_second": rate,
                "ttft_target_seconds": ttft_ms / 1e3 if ttft_ms is not None else None,
                "itl_target_seconds": itl_ms / 1e3 if itl_ms is not None else None,
                "max_window": max_window,
                "max_batch": max_batch,
            }
        )
    except ValidationError as error:
        raise InvalidRequest(explain(error, list(Deployment.model_fields))) from None
    costs = roofline_costs(deployment)
    if calibrate is not None:
        points = read_points(calibrate)
        costs = Costs(Calibrated(points), costs.draft, drafting_share)
        errors = held_out_errors(points)
        worst = max(errors, key=lambda each: abs(each.error))
        middle = sorted(abs(each.error) for each in errors)[len(errors) // 2]
        console.out.print(
            f"calibrated with {len(points)} passes; each predicted from the others: median error {middle:.1%}, worst "
            f"{worst.error:+.1%} at batch {worst.batch}, window {worst.window}"
        )
    found = work_out(deployment, costs)
    windows = {low: (high, window) for low, high, window in found.schedule}

    def window_of(batch: int) -> int:
        return next((window for low, (high, window) in windows.items() if low <= batch <= high), 0)

    share = rate / found.with_speculation.replicas
    played = (
        at_rate(arrivals, share) if arrivals is not None else poisson(500, share, prompt_tokens, output_tokens, seed=0)
    )
    memory = found.memory
    alone = Costs(costs.target, None)
    simulated = {}
    for name, cost, room, chosen in (
        ("without", alone, memory.max_batch_without_draft, lambda _: 0),
        ("with", costs, memory.max_batch, window_of),
    ):
        kv_tokens = max(room * deployment.tokens_per_sequence, max(a.prompt_tokens + a.output_tokens for a in played))
        simulated[name] = simulate(
            played,
            cost,
            kv_tokens=kv_tokens,
            max_batch=min(room, max_batch),
            window_of=chosen,
            tokens_per_pass=deployment.tokens_per_pass,
        )
    for table in console.plan_tables(found, simulated):
        console.out.print(table)
    if found.why_negative:
        console.out.print(f"no window pays {found.why_negative}")
    console.out.print(f"[bold]{found.verdict}[/]")
    title = f"{target} on {tp} x {accelerator}"
    written = {"plan": found.model_dump(), "simulated": {name: each.model_dump() for name, each in simulated.items()}}
    for path, text in (
        (json_file, json.dumps(written, indent=2) + "\n"),
        (html_file, plan_html(found, simulated, title)),
    ):
        write(path, text)
