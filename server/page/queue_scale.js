// The axis of output tokens, made for the visible requests. It changes seldom, so that bars can be
// compared over time.

/** Share of those requests whose whiskers end inside the axis. */
const INSIDE = 0.9;
const RESCALE_MS = 1000;
/** The axis gets shorter when the requests have needed less than this share of it for a while. */
const SHRINK_BELOW = 0.6;
const SHRINK_AFTER_MS = 3000;

class QueueScale {
  constructor() {
    this.end = 100;
    this.checkedAt = -Infinity;
    this.fullAt = 0;
  }

  update(requests) {
    const now = performance.now();
    if (requests.length === 0 || now < this.checkedAt + RESCALE_MS) return;
    const first = this.checkedAt === -Infinity;
    this.checkedAt = now;
    const needed = this.needed(requests);
    if (needed > SHRINK_BELOW * this.end) this.fullAt = now;
    const shrinks = first || now > this.fullAt + SHRINK_AFTER_MS;
    if (needed > this.end || shrinks) this.end = roundUp(Math.max(10, needed), FINE);
  }

  needed(requests) {
    const reaches = Float64Array.from(requests, reachOf).sort();
    return reaches[Math.min(reaches.length - 1, Math.floor(INSIDE * reaches.length))];
  }

  /** Values of the axis' marks, about one in `spacing` pixels. */
  marks(width, spacing) {
    const step = roundUp(Math.max(1, (this.end * spacing) / Math.max(spacing, width)), COARSE);
    const marks = [];
    for (let value = 0; value <= this.end; value += step) marks.push(value);
    return marks;
  }
}
