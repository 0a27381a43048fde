// Server-sent events of a response.

/** One event of its lines, or null for a comment. */
function eventOf(lines) {
  let name = 'message';
  let data = null;
  for (const line of lines.split('\n')) {
    if (line.startsWith('event:')) name = line.slice(6).trim();
    if (!line.startsWith('data:')) continue;
    const value = line.slice(line[5] === ' ' ? 6 : 5);
    data = data === null ? value : `${data}\n${value}`;
  }
  return data === null ? null : { name, data };
}

/** Cuts text that comes in pieces into events. */
class EventCutter {
  constructor() {
    this.rest = '';
  }

  push(text) {
    const events = [];
    this.rest += text.includes('\r') ? text.replace(/\r/g, '') : text;
    let start = 0;
    for (;;) {
      const end = this.rest.indexOf('\n\n', start);
      if (end < 0) break;
      const event = eventOf(this.rest.slice(start, end));
      if (event) events.push(event);
      start = end + 2;
    }
    this.rest = this.rest.slice(start);
    return events;
  }
}

/** Yields the events of a response, in the batches in which they come; comments give none. */
async function* readEvents(response) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  const cutter = new EventCutter();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield cutter.push(decoder.decode(value, { stream: true }));
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
