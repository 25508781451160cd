// Node's openai against limits: what it does by itself when refused. Environment: BASE_URL (with /v1), KEYS (a prefix), MODEL.
import assert from 'node:assert/strict';
import OpenAI from 'openai';
import { rejects, run } from './report.mjs';

const { BASE_URL, KEYS, MODEL } = process.env;
const ask = (key, more = {}, options = {}) =>
  new OpenAI({ baseURL: BASE_URL, apiKey: `${KEYS}-${key}`, maxRetries: 3, timeout: 30_000 }).chat.completions.create(
    { model: MODEL, messages: [{ role: 'user', content: 'hello' }], max_tokens: 20, ...more },
    options,
  );

await run({
  async rate() {
    const began = performance.now();
    for (let i = 0; i < 3; i++) await ask('rate');
    assert.ok(performance.now() - began > 1900, 'three requests at one a second came sooner');
  },
  async too_large() {
    const e = await rejects(ask('large', { max_tokens: 20_000 }), OpenAI.RateLimitError);
    assert.equal(e.code, 'rate_limit_exceeded');
    assert.equal(e.headers.get('x-should-retry'), 'false');
  },
  async room() {
    await ask('room', { model: 'narrow' }, { headers: { 'x-penstock-no-queue': '1' } });
  },
});
