// Objects of a schema and tools by Vercel's AI SDK, on a running trail-rt server: by its provider
// of compatible servers (chats), and by that of OpenAI (the Responses API, its default).
//
//     tests/clients/run.sh               # installs the packages and runs this
//     node ai_sdk_check.mjs http://127.0.0.1:8000
//
// Tools are checked where the model's template shows them. Prints a line a check, or what went
// wrong; exit code 1 if something did.

import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateObject, generateText, streamText, tool } from 'ai';
import { z } from 'zod';

globalThis.AI_SDK_LOG_WARNINGS = false;
const baseURL = `${process.argv[2].replace(/\/$/, '')}/v1`;
const id = (await (await fetch(`${baseURL}/models`)).json()).data[0].id;
const settings = { maxOutputTokens: 700, temperature: 1, maxRetries: 0 };
const prompt = 'What is the weather in Bern?';
const provider = { name: 'trail', baseURL, includeUsage: true, supportsStructuredOutputs: true };
const models = {
  // The Responses API has no seed.
  chats: [createOpenAICompatible(provider)(id), { ...settings, seed: 1 }],
  responses: [createOpenAI({ baseURL, apiKey: 'none' })(id), settings],
};

const city = z.object({
  name: z.string().max(12),
  people: z.number().int().min(0).max(99_999_999),
  kind: z.enum(['town', 'capital']),
});
const weather = tool({
  description: 'The weather of a city.',
  inputSchema: z.object({ city: z.string().max(20) }),
  execute: async ({ city }) => `It is sunny in ${city}.`,
});

const checks = (model, asked) => ({
  generateText: async () => (await generateText({ model, prompt, ...asked })).text,
  streamText: async () => {
    const result = streamText({ model, prompt, ...asked });
    let text = '';
    for await (const piece of result.textStream) text += piece;
    return text;
  },
  generateObject: async () => {
    const { object } = await generateObject({ model, schema: city, prompt, ...asked });
    return JSON.stringify(city.parse(object));
  },
});
const toolChecks = (model, asked) => ({
  'generateText with a required tool': async () => {
    const call = { tools: { weather }, toolChoice: 'required' };
    const { toolResults } = await generateText({ model, prompt, ...call, ...asked });
    return toolResults[0].output;
  },
  'streamText with a required tool': async () => {
    const call = { tools: { weather }, toolChoice: 'required' };
    const { toolResults } = streamText({ model, prompt, ...call, ...asked });
    return (await toolResults)[0].output;
  },
});

const body = { messages: [{ role: 'user', content: prompt }], max_tokens: 1 };
body.tools = [{ type: 'function', function: { name: 'f' } }];
const headers = { 'content-type': 'application/json' };
const request = { method: 'POST', headers, body: JSON.stringify(body) };
const hasTools = (await fetch(`${baseURL}/chat/completions`, request)).ok;
let failed = 0;
for (const [api, of] of Object.entries(models)) {
  const all = { ...checks(...of), ...(hasTools ? toolChecks(...of) : {}) };
  for (const [name, check] of Object.entries(all)) {
    try {
      const found = await check();
      if (!found) throw new Error('nothing');
      console.log(`ok   ai, ${api}: ${name}: ${JSON.stringify(found).slice(0, 70)}`);
    } catch (error) {
      failed += 1;
      const why = String(error.message).slice(0, 400);
      console.log(`FAIL ai, ${api}: ${name}: ${error.name}: ${why}`);
    }
  }
}
if (!hasTools) console.log(`skipped: tools, as the template of ${id} shows none`);
process.exit(failed ? 1 : 0);
