// One call of /v1/chat/completions, streamed.

/** A number of a response header, or null. */
function headerNumber(response, name) {
  const text = response.headers.get(name);
  const value = Number(text);
  return text === null || !Number.isFinite(value) ? null : value;
}

/** The fields of one chunk, to those of `on` that want them. */
function passChunk(chunk, on) {
  if (chunk.error) throw new CallError(chunk.error.message || 'The answer failed.',
    { code: chunk.error.code });
  const choice = chunk.choices && chunk.choices[0];
  if (choice && choice.delta) on.delta(choice.delta);
  if (choice && choice.finish_reason) on.finish(choice.finish_reason);
  if (chunk.usage) on.usage(chunk.usage);
  if (chunk.trail) on.trail(chunk.trail);
}

/**
 * Asks for an answer and reads it to its end. `on` has `start({ id, etaMs, place })`, `delta`,
 * `finish`, `trail` and `usage`.
 */
async function complete(body, signal, on) {
  const response = await call('v1/chat/completions', { body, signal });
  on.start({
    id: response.headers.get('x-request-id'),
    etaMs: headerNumber(response, 'x-trail-eta-ms'),
    place: headerNumber(response, 'x-trail-queue-position'),
  });
  for await (const events of readEvents(response)) {
    for (const { data } of events) {
      if (data === '[DONE]') return;
      passChunk(JSON.parse(data), on);
    }
  }
  throw new CallError('The connection ended before the answer was complete.');
}
