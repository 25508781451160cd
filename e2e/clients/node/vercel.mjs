// The Vercel AI SDK against the gateway: one streamed chat.
import assert from 'node:assert/strict';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { streamText } from 'ai';
import { run } from './report.mjs';

const provider = createOpenAICompatible({ name: 'penstock', baseURL: process.env.BASE_URL, apiKey: 'key-full' });

await run({
  async streamed_chat() {
    const failed = [];
    const result = streamText({ model: provider('penstock-local'), prompt: 'Where does the water go?', maxOutputTokens: 20, onError: ({ error }) => failed.push(error) });
    let text = '';
    for await (const piece of result.textStream) text += piece;
    assert.deepEqual(failed, []);
    assert.ok(text.length > 0, 'no text came');
  },
});
