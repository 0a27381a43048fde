// The live stream: opened again whenever it ends.

const FIRST_DELAY_MS = 500;
const LAST_DELAY_MS = 5000;
/** Without a byte for so long, not even a keep-alive, the stream is taken for dead. */
const SILENCE_MS = 45000;

class LiveStream {
  /**
   * `prepare(signal)` reads what must be known before, and returns the stream's path;
   * `onEvent(name, value)`; `onLink(state, error, delayMs)` with the states live, away, refused
   * and key.
   */
  constructor({ prepare, onEvent, onLink }) {
    this.prepare = prepare;
    this.onEvent = onEvent;
    this.onLink = onLink;
    this.running = null;
  }

  /** Opens the stream, in place of one that is open. */
  open() {
    this.close();
    this.running = new AbortController();
    this.run(this.running.signal);
  }

  close() {
    if (this.running) this.running.abort();
    this.running = null;
  }

  async run(signal) {
    let delay = FIRST_DELAY_MS;
    while (!signal.aborted) {
      let error = null;
      const opened = () => {
        delay = FIRST_DELAY_MS;
      };
      try {
        await this.follow(signal, opened);
      } catch (thrown) {
        error = thrown;
      }
      if (signal.aborted) return;
      if (error && error.status === 401) {
        this.onLink('key', error, 0);
        return;
      }
      if (error && error.status) delay = LAST_DELAY_MS;
      this.onLink(error && error.status ? 'refused' : 'away', error, delay);
      await pause(delay, signal);
      delay = Math.min(LAST_DELAY_MS, delay * 2);
    }
  }

  /** Reads one connection to its end. */
  async follow(signal, opened) {
    const watch = new AbortController();
    const stop = () => watch.abort();
    signal.addEventListener('abort', stop);
    let timer = setTimeout(stop, SILENCE_MS);
    try {
      const path = await this.prepare(watch.signal);
      const response = await call(path, { signal: watch.signal });
      for await (const events of readEvents(response)) {
        clearTimeout(timer);
        timer = setTimeout(stop, SILENCE_MS);
        if (events.length > 0) opened();
        this.pass(events);
      }
    } finally {
      clearTimeout(timer);
      signal.removeEventListener('abort', stop);
    }
  }

  /** Of several frames that came together only the last is read. */
  pass(events) {
    let last = events.length - 1;
    while (last >= 0 && events[last].name !== 'frame') last -= 1;
    events.forEach((event, i) => {
      if (event.name !== 'frame' || i === last) this.handle(event);
    });
  }

  handle(event) {
    this.onLink('live', null, 0);
    try {
      this.onEvent(event.name, JSON.parse(event.data));
    } catch (error) {
      console.error(`event ${event.name}:`, error);
    }
  }
}
