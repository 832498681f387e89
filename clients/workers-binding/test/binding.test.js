// The binding against an HTTP server of the test's own, on a real socket.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { after, before, beforeEach, test } from "node:test";

import { AiError, createAi, readEvents } from "../src/index.js";

const ACCOUNT = "a".repeat(32);
let server;
let seen;
let answer;

before(async () => {
  server = createServer(async (request, response) => {
    let body = "";
    for await (const piece of request) body += piece;
    seen.push({ method: request.method, url: request.url, headers: request.headers, body });
    answer(response, seen.length);
  });
  server.keepAliveTimeout = 60_000; // nothing is closed between two tests of a busy machine
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
});
after(() => server.close());
beforeEach(() => {
  seen = [];
});

const create = (more = {}) =>
  createAi({
    baseUrl: `http://127.0.0.1:${server.address().port}/client/v4/`,
    accountId: ACCOUNT,
    apiToken: "secret",
    ...more,
  });
const reply = (response, status, body, headers = {}) => {
  response.writeHead(status, { "content-type": "application/json", ...headers });
  response.end(JSON.stringify(body));
};
const succeed = (result) => (response) =>
  reply(response, 200, { result, success: true, errors: [], messages: [] });
const refuse = (response, status, code, message, headers) =>
  reply(response, status, { result: null, success: false, errors: [{ code, message }] }, headers);

test("a result comes out of its envelope", async () => {
  answer = succeed({ response: "Hello" });
  const result = await create().run("@cf/meta/small", { prompt: "Hi" });
  assert.deepEqual(result, { response: "Hello" });
  assert.equal(seen[0].url, `/client/v4/accounts/${ACCOUNT}/ai/run/@cf/meta/small`);
  assert.equal(seen[0].headers.authorization, "Bearer secret");
  assert.deepEqual(JSON.parse(seen[0].body), { prompt: "Hi" });
});

test("a stream is the bytes as they come, and its events can be read", async () => {
  answer = (response) => {
    response.writeHead(200, { "content-type": "text/event-stream" });
    response.write('data: {"response":"He');
    setTimeout(() => response.end('llo"}\n\n: ping\n\ndata: {"response":"!"}\n\ndata: [DONE]\n\n'), 20);
  };
  for (const [input, options] of [[{ prompt: "a", stream: true }], [{ prompt: "a" }, { stream: true }]]) {
    const stream = await create().run("@cf/meta/small", input, options);
    const texts = [];
    for await (const event of readEvents(stream)) texts.push(event.response);
    assert.deepEqual(texts, ["Hello", "!"]);
    assert.equal(JSON.parse(seen.at(-1).body).stream, true);
  }
});

test("a stream that is cut short, or ends in an error, is no answer", async () => {
  const ends = ["", 'data: {"success":false,"errors":[{"code":3007,"message":"Too late."}]}\n\n'];
  for (const [index, end] of ends.entries()) {
    answer = (response) => {
      response.writeHead(200, { "content-type": "text/event-stream" });
      response.end(`data: {"response":"Hel"}\n\n${end}`);
    };
    const stream = await create().run("@cf/meta/small", { prompt: "a", stream: true });
    const read = async () => {
      for await (const event of readEvents(stream)) assert.equal(event.response, "Hel");
    };
    await assert.rejects(read, index ? /3007: Too late/ : /before its end mark/);
  }
});

test("an error carries the server's sentence and number, and is not repeated", async () => {
  answer = (response) => refuse(response, 400, 5007, "No such model.", { "x-request-id": "r1" });
  await assert.rejects(create().run("@cf/meta/none", { prompt: "a" }), (error) => {
    assert.ok(error instanceof AiError);
    assert.deepEqual([error.status, error.code, error.requestId], [400, 5007, "r1"]);
    assert.match(error.message, /5007: No such model/);
    return true;
  });
  assert.equal(seen.length, 1);
});

test("what may pass is tried again after the pause that was asked for", async () => {
  answer = (response, number) =>
    number < 2 ? refuse(response, 429, 3040, "Busy.", { "retry-after": "1" }) : succeed("ok")(response);
  const begun = Date.now();
  assert.equal(await create().run("@cf/meta/small", { prompt: "a" }), "ok");
  assert.ok(Date.now() - begun >= 990);
  assert.equal(seen.length, 2);
});

test("a connection that breaks before any answer is made again", async () => {
  answer = (response, number) => (number < 2 ? response.destroy() : succeed("ok")(response));
  assert.equal(await create().run("@cf/meta/small", { prompt: "a" }), "ok");
  await assert.rejects(create({ maxRetries: 0, fetch: async () => Promise.reject(new TypeError("no way")) })
    .run("@cf/meta/small", {}), /no way/);
  assert.equal(seen.length, 2);
});

test("a server that says that trying again is in vain is believed", async () => {
  answer = (response) => refuse(response, 429, 3036, "Used up.", { "x-should-retry": "false" });
  await assert.rejects(create().run("@cf/meta/small", { prompt: "a" }), /3036/);
  assert.equal(seen.length, 1);
});

test("options become headers and parameters", async () => {
  answer = succeed({});
  await create().run("@cf/meta/small", { prompt: "a" }, {
    sessionAffinity: "ses_1",
    idempotencyKey: "k",
    queueRequest: true,
    extraHeaders: { "x-own": "1" },
  });
  const { headers, url } = seen[0];
  assert.ok(url.endsWith("?queueRequest=true"));
  assert.deepEqual(
    [headers["x-session-affinity"], headers["idempotency-key"], headers["x-own"]],
    ["ses_1", "k", "1"],
  );
});

test("an abort ends the pause between attempts", async () => {
  const aborting = new AbortController();
  answer = (response) => {
    refuse(response, 503, 3040, "Busy.", { "retry-after": "30" });
    response.on("finish", () => setTimeout(() => aborting.abort(new Error("enough")), 500));
  };
  const running = create().run("@cf/meta/small", { prompt: "a" }, { signal: aborting.signal });
  await assert.rejects(running, /enough/);
  assert.equal(seen.length, 1);
});

test("models are listed to the end", async () => {
  answer = (response, number) => succeed(number < 3 ? [{ name: `m${number}` }] : [])(response);
  assert.deepEqual(await create().models({ task: "Text Generation" }), [{ name: "m1" }, { name: "m2" }]);
  assert.match(seen[2].url, /task=Text\+Generation&page=3/);
});

test("settings and names that cannot work are refused at once", async () => {
  assert.throws(() => create({ apiToken: "" }), /apiToken/);
  await assert.rejects(create().run("small", {}), /@scope/);
});
