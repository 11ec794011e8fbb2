"use strict";

const byId = (id) => document.getElementById(id);
const KEPT = 120;
const series = { speed: [], acceptance: [], pass: [], window: [], batch: [], ttft: [] };
const stopped = { controller: null };
let model = "";
let conversation = [];

function headers() {
  const key = byId("key").value.trim();
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

async function refusal(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered ${response.status}`;
  }
}

// --- charts ---

function draw(name, format) {
  const values = series[name];
  const svg = byId(`c-${name}`);
  const known = values.filter((value) => value !== null);
  const high = Math.max(1e-9, ...known) * 1.1;
  svg.setAttribute("viewBox", `0 0 ${KEPT - 1} 100`);
  svg.setAttribute("preserveAspectRatio", "none");
  let path = "";
  let pen = "M";
  values.forEach((value, i) => {
    if (value === null) { pen = "M"; return; }
    path += `${pen}${KEPT - values.length + i} ${(100 - (value / high) * 96).toFixed(1)}`;
    pen = "L";
  });
  svg.replaceChildren();
  if (path) {
    const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
    line.setAttribute("d", path);
    svg.append(line);
  }
  const last = values[values.length - 1];
  byId(`v-${name}`).textContent = last === null || last === undefined ? "–" : format(last);
}

function push(name, value, format) {
  series[name].push(value === undefined ? null : value);
  if (series[name].length > KEPT) series[name].shift();
  draw(name, format);
}

async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) yield part.slice(6);
  }
}

async function watch() {
  for (;;) {
    try {
      const response = await fetch("/v1/events", { headers: headers() });
      if (!response.ok) throw new Error(await refusal(response));
      byId("link").textContent = "connected";
      let beats = 0;
      for await (const data of eventsOf(response)) {
        const now = JSON.parse(data);
        push("speed", now.tokens_per_second, (v) => v.toFixed(0));
        push("acceptance", now.acceptance, (v) => `${(100 * v).toFixed(0)}%`);
        push("pass", now.tokens_per_step, (v) => v.toFixed(2));
        push("window", now.window, (v) => v.toFixed(1));
        push("batch", now.running, () => `${now.running}, ${now.waiting}`);
        if (beats++ % 5 === 0) explain();
      }
    } catch (error) {
      byId("link").textContent = error.message;
    }
    byId("link").textContent = byId("link").textContent === "connected" ? "lost the server" : byId("link").textContent;
    await new Promise((resume) => setTimeout(resume, 2000));
  }
}

async function explain() {
  const response = await fetch("/v1/speculation", { headers: headers() });
  if (!response.ok) return;
  const found = await response.json();
  const rows = [
    ["mode", found.speculation],
    ["steps that could speculate", found.control.steps],
    ["that did", found.control.speculated],
    ["stopped: drafts not worth verifying", found.control.unpromising],
    ["stopped: drafts cost more than they brought", found.control.losing],
    ["paid again after a stop", found.control.recoveries],
  ];
  for (const [name, counts] of Object.entries(found.proposers)) {
    rows.push([`${name}: accepted of drafted`, `${counts.accepted} of ${counts.drafted}`]);
  }
  byId("why").replaceChildren(...rows.flatMap(([name, value]) => {
    const term = document.createElement("dt");
    const fact = document.createElement("dd");
    term.textContent = name;
    fact.textContent = value;
    return [term, fact];
  }));
}

// --- chat ---

function card(title) {
  const box = document.createElement("div");
  const head = document.createElement("h3");
  const text = document.createElement("p");
  const facts = document.createElement("p");
  head.textContent = title;
  text.className = "text";
  facts.className = "facts";
  box.append(head, text, facts);
  return { box, text, facts };
}

async function answer(speculation, place, signal) {
  const started = performance.now();
  let first = null;
  let tokens = 0;
  let accepted = 0;
  let said = "";
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: headers(),
    signal,
    body: JSON.stringify({
      model,
      messages: conversation,
      max_tokens: Number(byId("most").value),
      temperature: Number(byId("temperature").value),
      seed: 1,
      stream: true,
      stream_options: { include_tokens: true, include_usage: true },
      speculation,
      remember: !byId("compare").checked, // what one side says must not help the other
    }),
  });
  if (!response.ok) throw new Error(await refusal(response));
  for await (const data of eventsOf(response)) {
    if (data === "[DONE]") break;
    const event = JSON.parse(data);
    if (event.error) throw new Error(event.error.message);
    const choice = event.choices[0];
    if (!choice || !choice.tokens) continue;
    if (first === null) first = performance.now();
    said += choice.delta.content || "";
    const whole = choice.tokens.map((token) => token.text).join("") === (choice.delta.content || "");
    if (!whole) place.text.append(choice.delta.content || "");
    for (const token of choice.tokens) {
      tokens += 1;
      accepted += token.accepted;
      if (!whole) continue;
      if (token.accepted) {
        const mark = document.createElement("mark");
        mark.className = "accepted";
        mark.textContent = token.text;
        place.text.append(mark);
      } else {
        place.text.append(token.text);
      }
    }
    const seconds = (performance.now() - first) / 1000;
    const speed = seconds > 0 ? ((tokens - 1) / seconds).toFixed(1) : "–";
    place.facts.textContent = `${tokens} tokens · ${speed} tokens/s · first after ${(first - started).toFixed(0)} ms · ${accepted} accepted drafts`;
    byId("log").scrollTop = byId("log").scrollHeight;
  }
  push("ttft", first === null ? null : first - started, (v) => v.toFixed(0));
  return said;
}

byId("form").addEventListener("submit", async (submitted) => {
  submitted.preventDefault();
  const asked = byId("ask").value.trim();
  if (!asked) return;
  conversation = [{ role: "user", content: asked }];
  const turn = document.createElement("article");
  const question = card("you");
  question.text.textContent = asked;
  turn.append(question.box);
  byId("log").append(turn);
  const modes = byId("compare").checked ? ["off", "auto"] : ["auto"];
  const pair = document.createElement("div");
  pair.className = "pair";
  turn.append(pair);
  byId("send").disabled = true;
  byId("stop").disabled = false;
  stopped.controller = new AbortController();
  try {
    const texts = [];
    for (const mode of modes) {
      const place = card(mode === "off" ? "without speculation" : "with speculation");
      pair.append(place.box);
      texts.push(await answer(mode, place, stopped.controller.signal));
    }
    if (texts.length === 2) {
      const verdict = document.createElement("p");
      verdict.className = "facts";
      verdict.textContent = texts[0] === texts[1] ? "the two texts are identical" : "the two texts differ";
      turn.append(verdict);
    }
  } catch (error) {
    const line = document.createElement("p");
    line.className = "error";
    line.textContent = error.name === "AbortError" ? "stopped" : error.message;
    turn.append(line);
  } finally {
    byId("send").disabled = false;
    byId("stop").disabled = true;
  }
});

byId("stop").addEventListener("click", () => stopped.controller?.abort());

byId("ask").addEventListener("keydown", (pressed) => {
  if (pressed.key === "Enter" && (pressed.ctrlKey || pressed.metaKey)) byId("form").requestSubmit();
});

async function meet() {
  const response = await fetch("/v1/models", { headers: headers() });
  if (response.ok) {
    model = (await response.json()).data[0].id;
    byId("model").textContent = model;
  } else {
    byId("model").textContent = await refusal(response);
  }
}

byId("key").addEventListener("change", meet);
meet();
watch();
