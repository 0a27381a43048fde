// The conversation and the field for the next message.

/** Ids of requests that are remembered as this page's own. */
const OWN_IDS = 200;

class Chat {
  constructor(models) {
    this.models = models;
    this.sampling = new Sampling();
    this.eta = new Eta();
    this.list = byId('turns');
    this.field = byId('message');
    this.turns = [];
    /** Ids of the requests sent from this page. */
    this.own = new Set();
    this.answering = null;
    this.id = null;
    this.follows = true;
    this.listen();
  }

  listen() {
    byId('composer').addEventListener('submit', (event) => {
      event.preventDefault();
      this.submit();
    });
    byId('stop').addEventListener('click', () => this.stop());
    byId('clear').addEventListener('click', () => this.clear());
    this.field.addEventListener('keydown', (event) => this.onFieldKey(event));
    this.field.addEventListener('input', () => this.grow());
    this.list.addEventListener('scroll', () => this.onScroll());
    document.addEventListener('keydown', (event) => {
      if (event.key === 'Escape' && !event.defaultPrevented) this.stop();
    });
  }

  onFieldKey(event) {
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.submit();
  }

  /** The field is as high as its text, up to the limit of its style. */
  grow() {
    this.field.style.height = 'auto';
    this.field.style.height = `${this.field.scrollHeight + 2}px`;
  }

  submit() {
    const text = this.field.value.trim();
    if (!text || this.answering || !this.sampling.check()) return;
    this.field.value = '';
    this.grow();
    this.ask(text);
  }

  stop() {
    if (this.answering) this.answering.abort();
  }

  clear() {
    this.stop();
    this.turns = [];
    this.list.querySelectorAll('.turn').forEach((element) => element.remove());
    byId('turns-empty').hidden = false;
    byId('clear').disabled = true;
    this.say('The conversation is empty.');
    this.field.focus();
  }

  regenerate() {
    if (this.answering || !this.sampling.check()) return;
    const turn = this.turns.pop();
    turn.element.remove();
    this.ask(turn.question);
  }

  /** The conversation so far; questions without an answer are left out. */
  messages(question) {
    const { system } = this.sampling;
    const messages = system ? [{ role: 'system', content: system }] : [];
    for (const turn of this.turns.filter((other) => other.text)) {
      messages.push({ role: 'user', content: turn.question });
      messages.push({ role: 'assistant', content: turn.text });
    }
    messages.push({ role: 'user', content: question });
    return messages;
  }

  body(question) {
    return {
      model: this.models.name,
      messages: this.messages(question),
      stream: true,
      stream_options: { include_usage: true, continuous_usage_stats: true },
      trail: { progress: true },
      ...this.sampling.fields,
    };
  }

  async ask(question) {
    const body = this.body(question);
    const turn = new Turn(question, this.models.name);
    this.append(turn);
    this.answering = new AbortController();
    this.begin();
    try {
      await complete(body, this.answering.signal, this.handlers(turn));
      turn.end('');
      this.say('The answer is complete.');
    } catch (error) {
      this.fail(turn, error);
    }
    this.finish();
  }

  handlers(turn) {
    return {
      start: (head) => {
        this.remember(head.id);
        this.eta.head(head);
      },
      delta: (delta) => turn.add(delta, () => this.scroll()),
      finish: (reason) => {
        turn.finish = reason;
      },
      trail: (trail) => {
        turn.estimate(trail);
        this.eta.chunk(trail);
      },
      usage: (usage) => {
        turn.usage = usage;
      },
    };
  }

  fail(turn, error) {
    if (error.name === 'AbortError') {
      turn.end('Stopped.');
      this.say('The answer was stopped.');
      return;
    }
    turn.fail(error instanceof CallError ? error : lostConnection());
    this.say(turn.error.textContent);
  }

  remember(id) {
    this.id = id;
    if (!id) return;
    this.own.add(id);
    if (this.own.size > OWN_IDS) this.own.delete(this.own.values().next().value);
  }

  append(turn) {
    if (this.turns.length > 0) this.turns[this.turns.length - 1].again.remove();
    this.turns.push(turn);
    turn.again.addEventListener('click', () => this.regenerate());
    byId('turns-empty').hidden = true;
    this.list.append(turn.element);
    this.follows = true;
    this.scroll();
  }

  begin() {
    this.id = null;
    byId('clear').disabled = false;
    byId('send').hidden = true;
    byId('stop').hidden = false;
    this.eta.start();
    this.scroll();
    this.say('The message was sent.');
  }

  finish() {
    const focused = document.activeElement === byId('stop');
    this.answering = null;
    byId('stop').hidden = true;
    byId('send').hidden = false;
    if (focused) this.field.focus();
    this.eta.stop();
    this.scroll();
  }

  /** The newest text stays in view unless the reader scrolled away from it. */
  onScroll() {
    const { scrollHeight, scrollTop, clientHeight } = this.list;
    this.follows = scrollHeight - scrollTop - clientHeight < 24;
  }

  scroll() {
    if (this.follows) this.list.scrollTop = this.list.scrollHeight;
  }

  /** A frame of the live view: it knows why an answer waits. */
  live(frame) {
    if (!this.answering || !this.id) return;
    this.eta.live(frame.requests.find((request) => request.id === this.id) || null);
  }

  say(text) {
    setText(byId('chat-status'), text);
  }
}

function lostConnection() {
  return new CallError('The connection ended before the answer was complete.');
}
