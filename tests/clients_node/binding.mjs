// Our own binding against a real gateway: prints what every kind of call has brought, as JSON.
import { AiError, createAi, readEvents } from "../../clients/workers-binding/src/index.js";

const { HEARTH_BASE, HEARTH_ACCOUNT, HEARTH_TOKEN, HEARTH_MODEL } = process.env;
const settings = { baseUrl: HEARTH_BASE, accountId: HEARTH_ACCOUNT, apiToken: HEARTH_TOKEN };
const AI = createAi(settings);
const messages = [{ role: "user", content: "What is the weather in Rome?" }];

const plain = await AI.run(HEARTH_MODEL, { messages });
const texts = [];
let usage = null;
for await (const event of readEvents(await AI.run(HEARTH_MODEL, { messages }, { stream: true }))) {
  texts.push(event.response);
  usage = event.usage ?? usage;
}
const raw = await AI.run(HEARTH_MODEL, { messages, stream: true }, { returnRawResponse: true });

const explain = async (call) => {
  try {
    await call();
  } catch (error) {
    const { status, code, message, requestId } = error;
    return { isOurs: error instanceof AiError, status, code, message, requestId };
  }
  return null;
};
console.log(
  JSON.stringify({
    plain,
    streamed: texts.join(""),
    usage,
    raw: [raw.status, raw.headers.get("content-type"), (await raw.text()).endsWith("data: [DONE]\n\n")],
    models: (await AI.models()).map(({ name }) => name),
    unknown: await explain(() => AI.run("@hearth/tests/none", { messages })),
    stranger: await explain(() => createAi({ ...settings, apiToken: "wrong" }).run(HEARTH_MODEL, { messages })),
  }),
);
