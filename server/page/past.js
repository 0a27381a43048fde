// The measurements of the last 15 minutes, one point every few seconds.

const KEPT_S = 900;
const PAST_COLUMNS = ['running', 'waiting', 'blocks', 'step_ms', 'mae', 'hit_rate', 'tokens_per_s'];

/** Points have `at`, the page's clock in seconds, and the columns. */
class Past {
  constructor() {
    this.everyS = 2;
    this.points = [];
    this.history = null;
    this.nextAt = 0;
    /** All KV blocks. */
    this.blocks = 0;
  }

  static now() {
    return performance.now() / 1000;
  }

  /** Another model: its history replaces this one. */
  forget() {
    this.points = [];
  }

  /**
   * The server's own history. Its clock is known exactly with the first frame; until then the
   * last row is taken for now. What the page knows from before a restart stays.
   */
  load(history) {
    this.history = history;
    this.everyS = history.every_s || 2;
    this.before = this.points;
    const { rows } = history;
    if (rows.length > 0) this.place(Past.now() - rows[rows.length - 1][0]);
    this.nextAt = 0;
  }

  /** `origin`: the page's time of the server's time 0. */
  place(origin) {
    const { columns, rows } = this.history;
    const points = rows.map((row) => {
      const point = {};
      columns.forEach((name, i) => {
        point[name] = row[i];
      });
      point.at = origin + point.t;
      return point;
    });
    const first = points.length > 0 ? points[0].at : Infinity;
    this.points = [...this.before.filter((point) => point.at < first), ...points];
    this.trim();
  }

  /** A frame; returns whether it became a point. */
  add(frame, counts) {
    const now = Past.now();
    this.blocks = frame.blocks.total;
    if (this.history) {
      this.place(now - frame.t);
      this.history = null;
    }
    if (now < this.nextAt) return false;
    this.nextAt = Math.max(this.nextAt + this.everyS, now + this.everyS / 2);
    this.points.push({
      at: now,
      running: counts.batch,
      waiting: counts.queue,
      blocks: frame.blocks.used,
      step_ms: frame.step_ms,
      mae: frame.mae,
      hit_rate: frame.hit_rate,
      tokens_per_s: frame.tokens_per_s,
    });
    this.trim();
    return true;
  }

  trim() {
    const oldest = Past.now() - KEPT_S;
    const kept = this.points.findIndex((point) => point.at >= oldest);
    this.points = kept < 0 ? [] : this.points.slice(kept);
  }

  /** The point nearest to a time, or null. */
  nearest(at) {
    let best = null;
    for (const point of this.points) {
      if (!best || Math.abs(point.at - at) < Math.abs(best.at - at)) best = point;
    }
    return best;
  }
}
