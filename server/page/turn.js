// One message of the reader with its answer.

const FINISH_NOTES = {
  length: 'Cut at the maximum number of tokens.',
  content_filter: 'Cut by the content filter.',
  abort: 'Aborted by the server.',
};

class Turn {
  constructor(question, model) {
    this.question = question;
    this.model = model;
    this.text = '';
    this.reasoning = '';
    this.usage = null;
    this.first = null;
    this.finish = null;
    this.sentAt = performance.now();
    this.firstAt = null;
    this.frame = 0;
    this.build();
  }

  build() {
    const asked = make('article', { className: 'said asked' },
      make('h3', { textContent: 'You' }),
      make('div', { className: 'prose', textContent: this.question }));
    this.thoughts = make('div', { className: 'prose' });
    this.details = make('details', { className: 'reasoning', hidden: true },
      make('summary', { textContent: 'Reasoning' }), this.thoughts);
    this.body = make('div', { className: 'body' });
    this.error = make('p', { className: 'error', hidden: true });
    this.stats = make('p', { className: 'stats' });
    this.copy = make('button', { type: 'button', textContent: 'Copy', hidden: true });
    this.again = make('button', { type: 'button', textContent: 'Regenerate', hidden: true });
    this.copy.addEventListener('click', () => this.copyText());
    const foot = make('div', { className: 'foot' }, this.stats, this.copy, this.again);
    const answered = make('article', { className: 'said answered' },
      make('h3', { textContent: this.model }), this.details, this.body, this.error, foot);
    this.element = make('div', { className: 'turn' }, asked, answered);
    this.answered = answered;
    answered.setAttribute('aria-busy', 'true');
  }

  /** Text of a chunk: shown with the next picture that the browser draws. */
  add(delta, onShown) {
    const text = delta.content || '';
    const reasoning = delta.reasoning_content || '';
    if (!text && !reasoning) return;
    if (this.firstAt === null) this.firstAt = performance.now();
    this.text += text;
    this.reasoning += reasoning;
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.show();
      onShown();
    });
  }

  show() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    setHidden(this.details, !this.reasoning);
    setText(this.thoughts, this.reasoning);
    showAnswer(this.body, this.text);
  }

  /** The first estimate of the whole length, to compare with what came. */
  estimate(trail) {
    if (this.first || !isNumber(trail.remaining_tokens)) return;
    const sent = this.usage ? this.usage.completion_tokens : 0;
    const interval = trail.remaining_interval;
    this.first = {
      tokens: sent + trail.remaining_tokens,
      interval: interval && interval.map((end) => sent + end),
    };
  }

  end(note) {
    this.endAt = performance.now();
    this.show();
    this.answered.setAttribute('aria-busy', 'false');
    setText(this.stats, this.statsText(note));
    this.copy.hidden = !this.text;
    this.again.hidden = false;
  }

  fail(error) {
    setText(this.error, inWords(error));
    this.error.hidden = false;
    this.again.textContent = 'Try again';
    this.end('');
  }

  statsText(note) {
    const parts = [note, FINISH_NOTES[this.finish] || ''];
    if (this.usage) parts.push(...this.counts(), ...this.comparison());
    return parts.filter((part) => part).join(' ');
  }

  counts() {
    const { completion_tokens: tokens, prompt_tokens: prompt } = this.usage;
    const cached = (this.usage.prompt_tokens_details || {}).cached_tokens || 0;
    const took = (this.endAt - this.sentAt) / 1000;
    const parts = [`${counted(tokens, 'token')} in ${duration(took)}.`];
    if (this.firstAt !== null) {
      parts.push(`Time to first token ${duration((this.firstAt - this.sentAt) / 1000)}.`);
    }
    const found = cached > 0 ? `, ${whole(cached)} from the prefix cache` : '';
    parts.push(`Prompt ${counted(prompt, 'token')}${found}.`);
    return parts;
  }

  comparison() {
    if (!this.first) return [];
    const range = this.first.interval ? ` (${tokenRange(this.first.interval)})` : '';
    return [`First estimate ${counted(Math.round(this.first.tokens), 'token')}${range}.`];
  }

  async copyText() {
    const done = await copyToClipboard(this.text);
    this.copy.textContent = done ? 'Copied' : 'Copying failed';
    setTimeout(() => {
      this.copy.textContent = 'Copy';
    }, 1500);
  }
}

/** Without a secure context there is no clipboard interface: then by a selection. */
async function copyToClipboard(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

function copyBySelection(text) {
  const focused = document.activeElement;
  const area = make('textarea', { value: text, className: 'unseen' });
  document.body.append(area);
  area.select();
  const done = document.execCommand('copy');
  area.remove();
  if (focused) focused.focus();
  return done;
}
