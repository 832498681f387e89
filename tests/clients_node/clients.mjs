// Every npm client against a real gateway, each by its base URL alone (workers-ai-provider, which has
// no such option, by a `fetch` that changes the host). Prints what each has brought, as JSON.
import { createReadStream } from "node:fs";
import Anthropic from "@anthropic-ai/sdk";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";
import Cloudflare from "cloudflare";
import OpenAI from "openai";
import { createWorkersAI } from "workers-ai-provider";

const { HEARTH_BASE, HEARTH_ACCOUNT, HEARTH_TOKEN, HEARTH_MODEL } = process.env;
const ACCOUNT = `${HEARTH_BASE}/client/v4/accounts/${HEARTH_ACCOUNT}`;
const model = HEARTH_MODEL;
const prompt = "What is the weather in Rome?";
const messages = [{ role: "user", content: prompt }];

const explain = async (call) => {
  try {
    await call();
  } catch (error) {
    return { status: error.status ?? error.statusCode, message: String(error.message) };
  }
  return null;
};
const collect = async (iterable, pick) => {
  const texts = [];
  for await (const event of iterable) texts.push(pick(event) ?? "");
  return texts.join("");
};

const clients = {
  async cloudflare() {
    const client = new Cloudflare({ apiToken: HEARTH_TOKEN, baseURL: `${HEARTH_BASE}/client/v4` });
    const account_id = HEARTH_ACCOUNT;
    const { response, usage } = await client.ai.run(model, { account_id, messages });
    const models = [];
    for await (const entry of client.ai.models.list({ account_id })) models.push(entry.name);
    const unknown = await explain(() => client.ai.run("@hearth/tests/none", { account_id, prompt }));
    return { text: response, promptTokens: usage.prompt_tokens, models, unknown };
  },

  async cloudflareFinetunes() {
    const client = new Cloudflare({ apiToken: HEARTH_TOKEN, baseURL: `${HEARTH_BASE}/client/v4` });
    const account_id = HEARTH_ACCOUNT;
    const made = await client.ai.finetunes.create({ account_id, model, name: "cats" });
    const uploaded = [];
    for (const file_name of ["adapter_model.safetensors", "adapter_config.json"]) {
      const file = createReadStream(`${process.env.HEARTH_ADAPTER}/${file_name}`);
      const done = await client.ai.finetunes.assets.create(made.id, { account_id, file, file_name });
      uploaded.push(done.success);
    }
    const { response } = await client.ai.run(model, { account_id, prompt, raw: true, lora: "cats" });
    const listed = await client.ai.finetunes.list({ account_id });
    const unknown = await explain(() => client.ai.run(model, { account_id, prompt, lora: "dogs" }));
    return { name: made.name, uploaded, text: response, listed: listed.map((one) => one.id), unknown };
  },

  async openai() {
    const client = new OpenAI({ apiKey: HEARTH_TOKEN, baseURL: `${ACCOUNT}/ai/v1` });
    const plain = await client.chat.completions.create({ model, messages });
    const stream = await client.chat.completions.create({ model, messages, stream: true });
    const streamed = await collect(stream, (chunk) => chunk.choices[0]?.delta.content);
    const unknown = await explain(() =>
      client.chat.completions.create({ model: "@hearth/tests/none", messages }),
    );
    const text = plain.choices[0].message.content;
    return { text, streamed, promptTokens: plain.usage.prompt_tokens, unknown };
  },

  async anthropic() {
    const client = new Anthropic({ apiKey: HEARTH_TOKEN, baseURL: `${ACCOUNT}/ai` });
    const asked = { model, messages, max_tokens: 50 };
    const plain = await client.messages.create(asked);
    const stream = await client.messages.create({ ...asked, stream: true });
    const streamed = await collect(stream, (event) => event.delta?.text);
    const unknown = await explain(() => client.messages.create({ ...asked, model: "@hearth/tests/none" }));
    const { input_tokens, cache_read_input_tokens } = plain.usage;
    const promptTokens = input_tokens + cache_read_input_tokens;
    return { text: plain.content[0].text, streamed, promptTokens, unknown };
  },

  async workersAiProvider() {
    const provider = createWorkersAI({
      accountId: HEARTH_ACCOUNT,
      apiKey: HEARTH_TOKEN,
      fetch: (url, options) => fetch(String(url).replace(/^https:\/\/[^/]+/, HEARTH_BASE), options),
    });
    return useAiSdk(provider(model), (name) => provider(name));
  },

  async openaiCompatible() {
    const provider = createOpenAICompatible({
      name: "hearth",
      baseURL: `${ACCOUNT}/ai/v1`,
      apiKey: HEARTH_TOKEN,
      includeUsage: true,
    });
    return useAiSdk(provider(model), (name) => provider(name));
  },
};

async function useAiSdk(chosen, choose) {
  const plain = await generateText({ model: chosen, prompt, maxRetries: 0 });
  const stream = streamText({ model: chosen, prompt, maxRetries: 0 });
  const streamed = await collect(stream.textStream, (text) => text);
  const unknown = await explain(() =>
    generateText({ model: choose("@hearth/tests/none"), prompt, maxRetries: 0 }),
  );
  const finish = await stream.finishReason;
  return { text: plain.text, streamed, promptTokens: plain.usage.inputTokens, finish, unknown };
}

const found = await clients[process.argv[2]]();
console.log(JSON.stringify(found));
