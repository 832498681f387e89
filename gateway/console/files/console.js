// What the console's pages do with script; without it they lack nothing but the moving parts.
"use strict";

const LIVE_EVERY_MS = 3000;

// Parts marked `data-live` are read again from the page's own address and replaced.
function keepLive() {
  if (!document.querySelector("[data-live]")) return;
  let isOn = true;
  const control = document.querySelector("[data-live-control]");
  const said = document.createElement("span");
  const button = document.createElement("button");
  button.type = "button";
  button.className = "link";
  const show = () => {
    said.textContent = isOn ? "Updates by itself" : "Stands still";
    button.textContent = isOn ? "Pause" : "Go on";
  };
  if (control) {
    show();
    button.addEventListener("click", () => { isOn = !isOn; show(); });
    control.append(said, button);
    control.hidden = false;
  }

  async function refresh() {
    if (!isOn || document.hidden) return;
    let response;
    try {
      response = await fetch(location.href, { headers: { "x-hearth-live": "1" }, cache: "no-store" });
    } catch {
      said.textContent = "The gateway does not answer";
      return;
    }
    if (response.status === 401) { location.reload(); return; }
    if (!response.ok) return;
    show();
    const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
    for (const part of document.querySelectorAll("[data-live]")) {
      const other = fresh.getElementById(part.id);
      // What somebody is in, or has opened, stays as it is.
      if (!other || part.contains(document.activeElement) || part.querySelector("details[open]")) continue;
      part.replaceChildren(...other.childNodes);
    }
  }
  setInterval(refresh, LIVE_EVERY_MS);
}

keepLive();

// A new credential can be copied with one press.
function offerCopy() {
  const place = document.querySelector("[data-copy]");
  if (!place || !navigator.clipboard) return;
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.getElementById(place.dataset.copy).textContent.trim());
    button.textContent = "Copied";
  });
  place.append(button);
  place.hidden = false;
}

// The playground: one question, and the answer as it comes. Everything is text, never markup.
function openPlayground() {
  const form = document.getElementById("playground");
  if (!form) return;
  const find = (id) => document.getElementById(id);
  const [answer, figures, ask, stop] = ["answer", "figures", "ask", "stop"].map(find);
  let running = null;
  stop.addEventListener("click", () => running && running.abort());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (running) return;
    running = new AbortController();
    ask.disabled = true;
    stop.disabled = false;
    answer.textContent = "";
    answer.dataset.state = "running";
    figures.textContent = "";
    try {
      await stream(running.signal);
    } catch (error) {
      if (error.name !== "AbortError") figures.textContent = error.message;
      else figures.textContent = "Stopped.";
    }
    running = null;
    ask.disabled = false;
    stop.disabled = true;
    answer.dataset.state = "done";
  });

  async function stream(signal) {
    const headers = { "content-type": "application/json", "x-form-token": form.dataset.formToken };
    const pasted = find("api_token")?.value.trim();
    if (pasted) headers.authorization = `Bearer ${pasted}`;
    const begun = performance.now();
    const response = await fetch(form.dataset.run, {
      method: "POST",
      headers,
      signal,
      body: JSON.stringify({
        model: find("model").value,
        messages: [{ role: "user", content: find("question").value }],
        max_tokens: Number(find("max_tokens").value) || undefined,
        temperature: Number(find("temperature").value),
        stream: true,
        stream_options: { include_usage: true },
      }),
    });
    if (!response.ok) {
      const body = await response.json().catch(() => null);
      throw new Error(body?.error?.message ?? `The gateway answered with ${response.status}.`);
    }
    let first = 0;
    let usage = null;
    const node = response.headers.get("x-hearth-node");
    for await (const text of readEvents(response.body)) {
      if (text === "[DONE]") break;
      const event = JSON.parse(text);
      if (event.error) throw new Error(event.error.message);
      const piece = event.choices?.[0]?.delta?.content;
      if (piece) {
        first ||= performance.now();
        answer.append(piece);
      }
      usage = event.usage ?? usage;
    }
    const parts = [];
    if (first) parts.push(`first text after ${Math.round(first - begun)} ms`);
    if (usage) {
      const seconds = Math.max((performance.now() - (first || begun)) / 1000, 0.001);
      const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
      parts.push(`${usage.prompt_tokens} tokens read, ${cached} of them from the cache`);
      parts.push(`${usage.completion_tokens} generated, ${Math.round(usage.completion_tokens / seconds)} a second`);
    }
    if (node) parts.push(`by ${node}`);
    figures.textContent = parts.join(" · ");
  }
}

// The data of server-sent events, one after the other.
async function* readEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    waiting += value;
    let end;
    while ((end = waiting.indexOf("\n\n")) >= 0) {
      const event = waiting.slice(0, end);
      waiting = waiting.slice(end + 2);
      for (const line of event.split("\n")) if (line.startsWith("data: ")) yield line.slice(6);
    }
  }
}

offerCopy();
openPlayground();
