// What Node's openai throws on each fault. Environment: BASE_URL (with /v1), FAULTS (names, separated by commas).

import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: "none", maxRetries: 0, timeout: 60_000 });

async function ask(fault, stream) {
  const messages = [{ role: "user", content: `fault:${fault};` }];
  let text = "";
  let raised = "";
  try {
    const answer = await client.chat.completions.create({ model: "m", messages, stream });
    if (stream) {
      for await (const chunk of answer) text += chunk.choices[0].delta.content ?? "";
    } else {
      text = answer.choices[0].message.content;
    }
  } catch (e) {
    raised = e.constructor.name;
  }
  return { fault, stream, raised, text: text.slice(0, 100) };
}

const faults = process.env.FAULTS.split(",");
const results = await Promise.all(faults.flatMap((f) => [ask(f, true), ask(f, false)]));
for (const r of results) console.log(JSON.stringify(r));
