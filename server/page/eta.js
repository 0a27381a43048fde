// The predicted rest of the answer that streams: a bar, full at the first estimate of the time
// left, with the interval drawn over it and beyond it, and words.

/** What fits on the track, as a multiple of the first estimate: at least, and at most. */
const LEAST_ROOM = 1.25;
const MOST_ROOM = 1.6;

class Eta {
  constructor() {
    this.box = byId('eta');
    this.track = byId('eta-track');
    this.fill = byId('eta-fill');
    this.first = byId('eta-first');
    this.interval = byId('eta-interval');
    this.timer = 0;
  }

  /** A request was sent: nothing is known yet. */
  start() {
    this.estimate = null;
    this.firstMs = null;
    this.scaleMs = null;
    this.place = null;
    this.row = null;
    this.chunkAt = -Infinity;
    this.draw();
    this.box.hidden = false;
    clearInterval(this.timer);
    this.timer = setInterval(() => this.draw(), reducedMotion.matches ? 1000 : 100);
  }

  stop() {
    clearInterval(this.timer);
    this.box.hidden = true;
  }

  /** What the head of the response says. */
  head({ etaMs, place }) {
    this.place = place;
    if (etaMs !== null) this.take({ tokens: null, interval: null, ms: etaMs, intervalMs: null });
  }

  /** What a chunk says. */
  chunk(trail) {
    this.chunkAt = performance.now();
    this.place = null;
    this.take({
      tokens: trail.remaining_tokens,
      interval: trail.remaining_interval,
      ms: trail.eta_ms,
      intervalMs: trail.eta_interval_ms,
    });
  }

  /** What the live view says of this request: it counts while no chunks come. */
  live(row) {
    this.row = row;
    // Where the bar is drawn once a second, the reason is not to be a second old.
    if (reducedMotion.matches) setText(byId('eta-reason'), this.reason());
    if (!row || performance.now() < this.chunkAt + 500) return;
    const last = row.last_ms || [null, null, null];
    this.take({
      tokens: row.remaining,
      interval: row.interval,
      ms: last[1],
      intervalMs: row.last_ms && [last[0], last[2]],
    });
  }

  take(given) {
    const estimate = isNumber(given.ms) ? given : { ...given, ...this.timesLeft() };
    this.estimate = { ...estimate, at: performance.now() };
    if (!isNumber(estimate.ms) || estimate.ms <= 0) return;
    const high = estimate.intervalMs ? estimate.intervalMs[1] : 0;
    if (this.firstMs === null) this.firstMs = estimate.ms;
    if (this.scaleMs === null || (!this.scaled && high > 0)) {
      const room = Math.min(MOST_ROOM, Math.max(LEAST_ROOM, high / this.firstMs));
      this.scaleMs = room * this.firstMs;
      this.scaled = high > 0;
    }
  }

  /** The last known times: chunks of a request that was not estimated yet have none. */
  timesLeft() {
    const { ms, intervalMs } = this.estimate || {};
    if (!isNumber(ms)) return {};
    return { ms: this.now(ms), intervalMs: intervalMs && intervalMs.map((end) => this.now(end)) };
  }

  /** Milliseconds left now of `ms` at the time of the estimate. */
  now(ms) {
    return Math.max(0, ms - (performance.now() - this.estimate.at));
  }

  draw() {
    const known = this.estimate && isNumber(this.estimate.ms) && this.scaleMs !== null;
    setHidden(this.fill, !known);
    setHidden(this.interval, !known || !this.estimate.intervalMs);
    if (known) this.drawBar();
    setText(byId('eta-text'), this.words());
    setText(byId('eta-reason'), this.reason());
  }

  drawBar() {
    const left = this.now(this.estimate.ms);
    setShare(this.fill, 'width', left / this.firstMs);
    setShare(this.first, 'width', this.firstMs / this.scaleMs);
    setAttribute(this.track, 'aria-valuenow', Math.round(100 * this.passed(left)));
    if (!this.estimate.intervalMs) return;
    const [low, high] = this.estimate.intervalMs.map((ms) => this.now(ms) / this.scaleMs);
    setShare(this.interval, 'left', low);
    setShare(this.interval, 'width', Math.min(1, high) - Math.min(1, low));
    this.interval.classList.toggle('open', high > 1);
  }

  passed(left) {
    return Math.min(1, Math.max(0, 1 - left / this.firstMs));
  }

  words() {
    const { estimate } = this;
    if (!estimate || (!isNumber(estimate.tokens) && !isNumber(estimate.ms))) {
      return 'No estimate yet';
    }
    if (isNumber(estimate.tokens) && estimate.tokens < 0.5) return 'Predicted to end now';
    const parts = [];
    if (isNumber(estimate.tokens)) {
      parts.push(`about ${counted(Math.round(estimate.tokens), 'token')}`);
    }
    if (isNumber(estimate.ms)) parts.push(`${duration(this.now(estimate.ms) / 1000)} left`);
    const range = estimate.interval ? ` (${tokenRange(estimate.interval)} tokens)` : '';
    return parts.join(', ') + range;
  }

  /** Why no tokens come, and when the first will. */
  reason() {
    const { row } = this;
    if (!row) return this.place === null ? '' : `Place ${whole(this.place)} in the queue.`;
    const parts = [];
    if (row.place > 0) parts.push(`${STATES[row.state].title}, place ${whole(row.place)}`);
    if (row.first_ms) parts.push(`first token ${within(row.first_ms)}`);
    if (row.place > 0 && row.reason) parts.push(row.reason);
    return parts.join('; ');
  }
}
