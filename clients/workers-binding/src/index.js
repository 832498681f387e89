/**
 * The Workers AI binding over Hearth's REST route: `env.AI.run(model, input, options)`.
 *
 * Needs nothing but `fetch`, so that it runs in Workers, Node 18+, Deno, Bun and browsers.
 */

const RETRYABLE = new Set([408, 429, 500, 502, 503, 504]);
const MAX_PAUSE_MS = 60_000;
const FIRST_PAUSE_MS = 500;
const MAX_BACKOFF_MS = 8_000;

/** An answer that is an error, with the sentence and the numbers that the server gave. */
export class AiError extends Error {
  /**
   * @param {string} message
   * @param {{ status: number, code?: number, requestId?: string, errors?: object[] }} facts
   */
  constructor(message, { status, code, requestId, errors = [] }) {
    super(code === undefined ? message : `${code}: ${message}`);
    this.name = "AiError";
    this.status = status;
    this.code = code;
    this.requestId = requestId;
    this.errors = errors;
  }
}

/** What a Worker knows as `env.AI`. */
export class Ai {
  #baseUrl;
  #accountId;
  #apiToken;
  #fetch;
  #maxRetries;

  /** @param {import("./index.d.ts").AiSettings} settings */
  constructor({ baseUrl, accountId, apiToken, fetch: ownFetch, maxRetries = 2 }) {
    for (const [name, value] of Object.entries({ baseUrl, accountId, apiToken })) {
      if (typeof value !== "string" || value === "") {
        throw new TypeError(`createAi: \`${name}\` must be a text that is not empty.`);
      }
    }
    this.#baseUrl = baseUrl.replace(/\/+$/, "").replace(/\/client\/v4$/, "");
    this.#accountId = accountId;
    this.#apiToken = apiToken;
    this.#fetch = ownFetch ?? ((...args) => globalThis.fetch(...args));
    this.#maxRetries = maxRetries;
  }

  /**
   * Runs a model. With `stream: true`, in the input or in the options, the answer is the
   * `ReadableStream` of its server-sent events; with `returnRawResponse` the `Response` itself;
   * else the result.
   */
  async run(model, input, options = {}) {
    if (typeof model !== "string" || !model.startsWith("@")) {
      throw new TypeError("run: `model` looks like `@scope/author/name`.");
    }
    const stream = options.stream ?? input?.stream ?? false;
    const body = options.stream === undefined ? input : { ...input, stream };
    const query = options.queueRequest ? "?queueRequest=true" : "";
    const headers = { ...options.extraHeaders };
    if (options.sessionAffinity) headers["x-session-affinity"] = options.sessionAffinity;
    if (options.idempotencyKey) headers["idempotency-key"] = options.idempotencyKey;
    const response = await this.#send("POST", `/ai/run/${model}${query}`, {
      body: JSON.stringify(body),
      headers,
      signal: options.signal,
    });
    if (options.returnRawResponse) return response;
    if (stream && isEventStream(response)) return response.body;
    return readResult(response);
  }

  /** The models that this account may use; `filter` is what `models/search` takes. */
  async models(filter = {}) {
    const found = [];
    for (let page = 1; ; page += 1) {
      const query = new URLSearchParams({ ...filter, page: String(page) });
      const response = await this.#send("GET", `/ai/models/search?${query}`, {});
      const entries = await readResult(response);
      if (entries.length === 0) return found;
      found.push(...entries);
      if (filter.page !== undefined) return found;
    }
  }

  async #send(method, path, { body, headers = {}, signal }) {
    const url = `${this.#baseUrl}/client/v4/accounts/${this.#accountId}${path}`;
    const sent = { authorization: `Bearer ${this.#apiToken}`, ...headers };
    if (body !== undefined) sent["content-type"] = "application/json";
    for (let attempt = 0; ; attempt += 1) {
      const isLast = attempt >= this.#maxRetries;
      let response;
      try {
        response = await this.#fetch(url, { method, headers: sent, body, signal });
      } catch (error) {
        // No answer at all: a connection that was refused, or closed while it was idle.
        if (isLast || signal?.aborted) throw error;
        await pause(findPause(null, attempt), signal);
        continue;
      }
      if (response.ok) return response;
      if (isLast || !mayRetry(response)) throw await toError(response);
      await response.body?.cancel();
      await pause(findPause(response, attempt), signal);
    }
  }
}

/** What a Worker knows as `env.AI`, for the account and the server of `settings`. */
export function createAi(settings) {
  return new Ai(settings);
}

/**
 * The JSON events of a stream that `run` has answered with, without `[DONE]`.
 *
 * A stream that ends without `[DONE]`, or whose last event is an error, throws an `AiError`.
 */
export async function* readEvents(stream) {
  const decoder = new TextDecoder();
  const reader = stream.getReader();
  let held = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      held += done ? decoder.decode() : decoder.decode(value, { stream: true });
      const events = held.split("\n\n");
      held = events.pop();
      for (const event of events) {
        const data = readData(event);
        if (data === null) continue;
        if (data === "[DONE]") return;
        const parsed = JSON.parse(data);
        if (parsed.success === false) throw createError(parsed, 200);
        yield parsed;
      }
      if (done) throw new AiError("The stream ended before its end mark.", { status: 200 });
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

function readData(event) {
  const lines = event.split("\n").filter((line) => line.startsWith("data:"));
  return lines.length === 0 ? null : lines.map((line) => line.slice(5).trimStart()).join("\n");
}

function isEventStream(response) {
  return (response.headers.get("content-type") ?? "").startsWith("text/event-stream");
}

async function readResult(response) {
  const body = await response.json();
  if (body.success === false) throw createError(body, response.status);
  return body.result;
}

function mayRetry(response) {
  return RETRYABLE.has(response.status) && response.headers.get("x-should-retry") !== "false";
}

/** How long the server asks to wait, else a pause that doubles; longer than a minute is ignored. */
function findPause(response, attempt) {
  const asked = Number(response?.headers.get("retry-after")) * 1000;
  if (asked > 0 && asked <= MAX_PAUSE_MS) return asked;
  return Math.min(FIRST_PAUSE_MS * 2 ** attempt, MAX_BACKOFF_MS);
}

function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const onAbort = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", onAbort);
      resolve();
    }, ms);
    if (signal?.aborted) onAbort();
    else signal?.addEventListener("abort", onAbort, { once: true });
  });
}

async function toError(response) {
  let body = {};
  try {
    body = await response.json();
  } catch {
    // not JSON: somebody between us and the server has answered
  }
  return createError(body, response.status, response.headers.get("x-request-id") ?? undefined);
}

function createError(body, status, requestId) {
  const errors = Array.isArray(body.errors) ? body.errors : [];
  const message = errors[0]?.message ?? `The server answered with status ${status}.`;
  return new AiError(message, { status, code: errors[0]?.code, requestId, errors });
}
