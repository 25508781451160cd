// Node's openai against the gateway. Environment: BASE_URL (with /v1), UPSTREAM (the scripted one).
import assert from 'node:assert/strict';
import OpenAI from 'openai';
import { zodResponseFormat } from 'openai/helpers/zod';
import { z } from 'zod';
import { eventually, rejects, run } from './report.mjs';

const { BASE_URL, UPSTREAM } = process.env;
const LOCAL = 'penstock-local', SCRIPTED = 'org/scripted';
const make = (apiKey, more = {}) => new OpenAI({ baseURL: BASE_URL, apiKey, maxRetries: 0, timeout: 30_000, ...more });
const client = make('key-full');
const question = [{ role: 'user', content: 'Where does the water go?' }];

const ask = (content, more = {}, options = {}, c = client) =>
  c.chat.completions.create({ model: SCRIPTED, messages: [{ role: 'user', content }], ...more }, options);
const upstream = async (path) => (await fetch(UPSTREAM + path)).json();
const lastBody = async () => JSON.parse((await upstream('/_last')).body);
const text = (chunks) => chunks.map((c) => c.choices[0]?.delta?.content ?? '').join('');
async function drain(stream) {
  const all = [];
  for await (const chunk of await stream) all.push(chunk);
  return all;
}

await run({
  async chat() {
    const answer = await client.chat.completions.create({ model: LOCAL, messages: question, max_tokens: 12, temperature: 0, ignore_eos: true });
    assert.ok(answer.choices[0].message.content);
    assert.equal(answer.usage.completion_tokens, 12);
    assert.equal(answer.choices[0].finish_reason, 'length');
  },
  async chat_stream_is_the_same_text() {
    const body = { model: LOCAL, messages: question, max_tokens: 24, temperature: 0 };
    const whole = await client.chat.completions.create(body);
    const chunks = await drain(client.chat.completions.create({ ...body, stream: true }));
    assert.equal(text(chunks), whole.choices[0].message.content);
    assert.ok(chunks.every((c) => !c.usage), 'usage that nobody asked for');
  },
  async chat_stream_with_usage() {
    const chunks = await drain(client.chat.completions.create({
      model: LOCAL, messages: question, max_tokens: 5, ignore_eos: true, stream: true, stream_options: { include_usage: true },
    }));
    assert.deepEqual(chunks.at(-1).choices, []);
    assert.equal(chunks.at(-1).usage.completion_tokens, 5);
  },
  async completion() {
    const body = { model: LOCAL, prompt: 'The river', max_tokens: 8, temperature: 0 };
    const whole = await client.completions.create(body);
    const chunks = await drain(client.completions.create({ ...body, stream: true }));
    assert.equal(chunks.map((c) => c.choices[0].text).join(''), whole.choices[0].text);
  },
  async embeddings_base64_is_the_default() {
    const [a, b] = await Promise.all([
      client.embeddings.create({ model: LOCAL, input: 'water', encoding_format: 'float' }),
      client.embeddings.create({ model: LOCAL, input: 'water' }),
    ]);
    const [plain, decoded] = [a.data[0].embedding, b.data[0].embedding];
    assert.ok(plain.length > 0 && plain.length === decoded.length);
    plain.forEach((x, i) => assert.ok(Math.abs(x - decoded[i]) < 1e-6, `${i}: ${x} ${decoded[i]}`));
    await client.embeddings.create({ model: SCRIPTED, input: 'water' });
    assert.equal((await lastBody()).encoding_format, 'base64');
  },
  async models_list_and_retrieve_with_a_slash() {
    const ids = (await drain(client.models.list())).map((m) => m.id);
    assert.ok(ids.includes(LOCAL) && ids.includes(SCRIPTED), String(ids));
    assert.equal((await client.models.retrieve(SCRIPTED)).id, SCRIPTED);
    await rejects(client.models.retrieve('org/none'), OpenAI.NotFoundError);
  },
  async unknown_fields_arrive_both_ways() {
    const answer = await ask('hello', { x_client: { a: [1, 2.5, null] }, top_k: 7 });
    const body = await lastBody();
    assert.deepEqual(body.x_client, { a: [1, 2.5, null] });
    assert.equal(body.top_k, 7);
    assert.deepEqual(answer.x_engine, { nested: [1, 2.5, 'é'] });
    const [chunk] = await drain(ask('hello', { stream: true }));
    assert.deepEqual(chunk.x_engine, { nested: [1, 2.5, 'é'] });
  },
  async tools() {
    const tool = { type: 'function', function: { name: 'get_weather', parameters: { type: 'object', properties: { city: { type: 'string' } } } } };
    const messages = [{ role: 'user', content: 'script:tools' }];
    const first = await client.chat.completions.create({ model: SCRIPTED, messages, tools: [tool] });
    const call = first.choices[0].message.tool_calls[0];
    assert.deepEqual(JSON.parse(call.function.arguments), { city: 'Oslo' });
    assert.deepEqual((await lastBody()).tools, [tool]);
    messages.push(first.choices[0].message, { role: 'tool', tool_call_id: call.id, content: 'cold' });
    const second = await client.chat.completions.create({ model: SCRIPTED, messages, tools: [tool] });
    assert.equal(second.choices[0].message.content, 'It is cold.');
  },
  async tools_streamed() {
    const final = await client.chat.completions.stream({ model: SCRIPTED, messages: [{ role: 'user', content: 'script:tools' }] }).finalChatCompletion();
    assert.equal(final.choices[0].message.tool_calls[0].function.arguments, '{"city":"Oslo"}');
  },
  async json_schema() {
    const shape = z.object({ answer: z.number(), unit: z.string() });
    const got = await client.chat.completions.parse({
      model: SCRIPTED, messages: [{ role: 'user', content: 'script:schema' }], response_format: zodResponseFormat(shape, 'length'),
    });
    assert.deepEqual(got.choices[0].message.parsed, { answer: 42, unit: 'm' });
    assert.equal((await lastBody()).response_format.json_schema.name, 'length');
  },
  async vision_parts() {
    const image = { type: 'image_url', image_url: { url: 'data:image/png;base64,' + Buffer.alloc(8000, 'PNG').toString('base64') } };
    const answer = await ask([{ type: 'text', text: 'script:vision' }, image]);
    assert.equal(answer.choices[0].message.content, 'parts: text,image_url');
    assert.deepEqual((await lastBody()).messages[0].content[1], image);
  },
  async reasoning_fields() {
    assert.equal((await ask('script:reason')).choices[0].message.reasoning_content, 'First, the river.');
    const chunks = await drain(ask('script:reason', { stream: true }));
    assert.equal(chunks.map((c) => c.choices[0].delta.reasoning_content ?? '').join(''), 'First, the river.');
    assert.equal(text(chunks), 'The sea.');
  },
  async responses() {
    const first = await client.responses.create({ model: SCRIPTED, input: 'hello' });
    assert.equal(first.output_text, 'You said: hello');
    const after = await client.responses.create({ model: SCRIPTED, input: 'again', previous_response_id: first.id });
    assert.equal(after.output_text, 'After resp_1: again');
    assert.equal((await client.responses.retrieve(first.id)).id, first.id);
    const events = await drain(client.responses.create({ model: SCRIPTED, input: 'hello there', stream: true }));
    assert.equal(events.at(-1).type, 'response.completed');
  },
  async raw_response_headers() {
    const { response, request_id } = await client.chat.completions
      .create({ model: SCRIPTED, messages: question }, { headers: { 'x-request-id': 'mine-1.2_3' } }).withResponse();
    assert.equal(response.headers.get('x-request-id'), 'mine-1.2_3');
    assert.equal(request_id, 'mine-1.2_3');
    const { response: metered } = await make('key-limited').chat.completions.create({ model: SCRIPTED, messages: question }).withResponse();
    for (const kind of ['limit', 'remaining', 'reset']) {
      for (const what of ['requests', 'tokens']) {
        assert.ok(metered.headers.get(`x-ratelimit-${kind}-${what}`), `no x-ratelimit-${kind}-${what}`);
      }
    }
  },
  async bad_request() {
    const e = await rejects(client.chat.completions.create({ model: LOCAL, messages: 'not a list' }), OpenAI.BadRequestError);
    assert.deepEqual([e.status, e.type, e.param], [400, 'invalid_request_error', 'messages']);
    assert.ok(e.code && e.requestID);
  },
  async authentication() {
    assert.equal((await rejects(make('wrong').models.list(), OpenAI.AuthenticationError)).code, 'invalid_api_key');
  },
  async permission() {
    assert.equal((await rejects(ask('hello', {}, {}, make('key-local-only')), OpenAI.PermissionDeniedError)).code, 'model_not_allowed');
  },
  async unknown_model() {
    const e = await rejects(client.chat.completions.create({ model: 'nobody/nothing', messages: question }), OpenAI.NotFoundError);
    assert.deepEqual([e.code, e.param], ['model_not_found', 'model']);
  },
  async rate_limit() {
    const c = make('key-one-a-minute');
    await ask('hello', {}, {}, c);
    const e = await rejects(ask('hello', {}, {}, c), OpenAI.RateLimitError);
    assert.deepEqual([e.code, e.type], ['rate_limit_exceeded', 'requests']);
    assert.ok(Number(e.headers.get('retry-after')) >= 1);
  },
  async engine_failures() {
    const e = await rejects(ask('script:status 500'), OpenAI.InternalServerError);
    assert.deepEqual([e.status, e.code], [502, 'upstream_error']);
    assert.equal((await rejects(ask('script:status 422'), OpenAI.UnprocessableEntityError)).code, 'engine_says_422');
  },
  async truncated_streams_throw() {
    for (const script of ['die', 'end', 'wrong']) {
      await assert.rejects(drain(ask('script:' + script, { stream: true })), undefined, `script:${script} ended as if well`);
    }
    await assert.rejects(drain(client.responses.create({ model: SCRIPTED, input: 'script:unfinished', stream: true })));
  },
  async timeout() {
    const began = performance.now();
    await rejects(ask('script:slow', {}, { timeout: 500 }), OpenAI.APIConnectionTimeoutError);
    assert.ok(performance.now() - began < 3000);
    await eventually(async () => (await upstream('/_open')) === 0);
  },
  async cancelled_stream_frees_the_engine() {
    const stream = await ask('script:drip', { stream: true });
    for await (const chunk of stream) {
      assert.equal(await upstream('/_open'), 1);
      break; // closes the connection
    }
    stream.controller.abort();
    await eventually(async () => (await upstream('/_open')) === 0);
  },
  async cancelled_while_silent_frees_the_engine() {
    const stop = new AbortController();
    const call = rejects(ask('script:slow', { stream: true }, { signal: stop.signal }), OpenAI.APIUserAbortError);
    await eventually(async () => (await upstream('/_open')) === 1);
    stop.abort();
    await call;
    await eventually(async () => (await upstream('/_open')) === 0);
  },
  async retries_after_429() {
    const c = make('key-one-a-second', { maxRetries: 3 });
    const began = performance.now();
    for (let i = 0; i < 3; i++) await ask('hello', {}, {}, c);
    const took = performance.now() - began;
    assert.ok(took > 1000 && took < 12_000, `three requests at one a second took ${took} ms`);
  },
  async retries_after_503() {
    const answer = await ask('script:busy 4 c', {}, { maxRetries: 4 });
    assert.equal(answer.choices[0].message.content, 'You said: script:busy 4 c');
  },
});
