// Asks a server what programs ask with OpenAI's own client, and looks at what the client makes of it.
//
// Arguments: address of a server, its key, address of one with a single slot and no queue. The first that is
// not as it must be ends the program with its stack.

import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import OpenAI from "openai";

const [address, apiKey, narrowAddress] = process.argv.slice(2);
const options = { apiKey, maxRetries: 0, timeout: 60_000 };
const client = new OpenAI({ ...options, baseURL: `${address}/v1` });
const narrow = new OpenAI({ ...options, baseURL: `${narrowAddress}/v1` });
const messages = [{ role: "user", content: "Tell me a story about a dog." }];

/** The error that asking gives, which is of this kind and names this field. */
async function refused(kind, status, param, ask) {
  const error = await ask().then(() => assert.fail("it was answered"), (error) => error);
  assert(error instanceof kind, error);
  assert.equal(error.status, status);
  assert.equal(error.param, param);
  return error;
}

async function models() {
  const names = [];
  for await (const model of client.models.list()) names.push(model.id);
  assert.deepEqual(names, ["tales"]);
  await refused(OpenAI.NotFoundError, 404, "model", () => client.models.retrieve("other"));
}

async function conversations() {
  const asked = { model: "tales", messages, max_tokens: 24, temperature: 0 };
  const whole = await client.chat.completions.create(asked);
  const text = whole.choices[0].message.content;
  assert.equal(whole.choices[0].finish_reason, "length");
  assert.equal(whole.usage.completion_tokens, 24);
  const stream = await client.chat.completions.create({ ...asked, stream: true, stream_options: { include_usage: true } });
  let streamed = "";
  let usage = null;
  for await (const piece of stream) {
    streamed += piece.choices[0]?.delta.content ?? "";
    usage = piece.usage ?? usage;
  }
  assert.equal(streamed, text);
  assert.equal(usage.total_tokens, whole.usage.total_tokens);
  // The client's own way to put pieces together.
  const joined = await client.chat.completions.stream({ ...asked, stream: true }).finalChatCompletion();
  assert.equal(joined.choices[0].message.content, text);
  const several = await client.chat.completions.create({ ...asked, n: 3, temperature: 1, seed: 5 });
  assert.deepEqual(several.choices.map(({ index }) => index), [0, 1, 2]);
  const { choices: [{ logprobs }] } = await client.chat.completions.create({ ...asked, logprobs: true, top_logprobs: 2 });
  assert.equal(logprobs.content.length, 24);
  assert(logprobs.content.every(({ top_logprobs }) => top_logprobs.length === 2));
  const word = text.split(" ").filter(Boolean)[3];
  const stopped = await client.chat.completions.create({ ...asked, stop: word });
  assert.equal(stopped.choices[0].finish_reason, "stop");
  assert(!stopped.choices[0].message.content.includes(word));
}

async function continuations() {
  const asked = { model: "tales", prompt: "Once upon a time", max_tokens: 12, temperature: 0 };
  const whole = await client.completions.create({ ...asked, logprobs: 1 });
  assert.equal(whole.choices[0].logprobs.tokens.length, 12);
  let streamed = "";
  for await (const piece of await client.completions.create({ ...asked, stream: true })) streamed += piece.choices[0].text;
  assert.equal(streamed, whole.choices[0].text);
}

async function mistakes() {
  const chat = (fields) => () => client.chat.completions.create({ model: "tales", messages, ...fields });
  await refused(OpenAI.BadRequestError, 400, "temperature", chat({ temperature: -1 }));
  await refused(OpenAI.BadRequestError, 400, "n", chat({ n: 9 }));
  await refused(OpenAI.BadRequestError, 400, "messages[0].role", chat({ messages: [{ role: "nobody", content: "?" }] }));
  await refused(OpenAI.NotFoundError, 404, "model", chat({ model: "other" }));
  const stranger = client.withOptions({ apiKey: "another" });
  await refused(OpenAI.AuthenticationError, 401, null, () => stranger.chat.completions.create({ model: "tales", messages }));
}

async function crowds() {
  const longOne = { model: "recall", prompt: "One", max_tokens: 8000, ignore_eos: true };
  const shortOne = { model: "recall", prompt: "One", max_tokens: 1 };
  const stream = await narrow.completions.create({ ...longOne, stream: true });
  const pieces = stream[Symbol.asyncIterator]();
  assert.equal((await pieces.next()).value.choices[0].index, 0);
  const full = await refused(OpenAI.RateLimitError, 429, null, () => narrow.completions.create(shortOne));
  assert.equal(full.code, "queue_full");
  // A client that tries again is answered once another has gone.
  const patient = { maxRetries: 20 };
  const later = narrow.completions.create(shortOne, patient);
  await sleep(500);
  stream.controller.abort();
  assert.equal((await later).usage.completion_tokens, 1);
  // One that loses its patience leaves its slot to others.
  const impatient = narrow.completions.create(longOne, { timeout: 500 });
  const error = await impatient.then(() => assert.fail("8000 tokens in half a second"), (error) => error);
  assert(error instanceof OpenAI.APIConnectionTimeoutError, error);
  assert.equal((await narrow.completions.create(shortOne, patient)).usage.completion_tokens, 1);
}

for (const check of [models, conversations, continuations, mistakes, crowds]) {
  const begin = performance.now();
  await check();
  console.log(`${check.name}: ${((performance.now() - begin) / 1000).toFixed(1)} s`);
}
process.exit(0);
