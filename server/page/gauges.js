// The measurements above the live view.

/** `[id, title, reading(frame, counts)]`; a reading is `{ value, unit, note, share, goal }`. */
const GAUGES = [
  ['running', 'Running', runningReading],
  ['waiting', 'Waiting', waitingReading],
  ['blocks', 'KV blocks', blocksReading],
  ['step', 'Step time', stepReading],
  ['rate', 'Throughput', rateReading],
  ['mae', 'Prediction error', errorReading],
  ['hits', 'Prefix hit rate', hitReading],
  ['coverage', 'ETA coverage', coverageReading],
];

/** Share of answers that an 80 % interval should hold. */
const COVERAGE_GOAL = 0.8;

/** Requests by state. `batch` has a place in the batch, `queue` has none. */
function countStates(frame) {
  const counts = { batch: frame.running, queue: frame.waiting };
  for (const name of STATE_NAMES) counts[name] = 0;
  for (const request of frame.requests) counts[request.state] += 1;
  counts.waiting += frame.omitted || 0;
  return counts;
}

function runningReading(frame, counts) {
  const limit = frame.max_running;
  return {
    value: whole(counts.batch),
    note: limit > 0 ? `of at most ${whole(limit)}` : 'now',
    share: limit > 0 ? counts.batch / limit : 0,
  };
}

function waitingReading(frame, counts) {
  const started = counts.paused + counts.swapped;
  return { value: whole(counts.queue), note: `${started > 0 ? whole(started) : 'none'} started` };
}

function blocksReading({ blocks }) {
  const share = blocks.total > 0 ? blocks.used / blocks.total : 0;
  return {
    value: whole(blocks.used),
    note: blocks.total > 0 ? `of ${whole(blocks.total)}, ${percent(share)}` : 'in use',
    share,
  };
}

function stepReading(frame) {
  const limit = frame.step_limit_ms;
  if (!isNumber(frame.step_ms)) return { value: null, note: 'no steps now' };
  return {
    value: measured(frame.step_ms),
    unit: 'ms',
    note: isNumber(limit) ? `limit ${whole(limit)}${SPACE}ms` : 'no limit',
    share: isNumber(limit) ? frame.step_ms / limit : undefined,
  };
}

function rateReading(frame) {
  const rate = frame.tokens_per_s;
  return { value: isNumber(rate) ? measured(rate) : null, unit: 'tokens/s', note: 'generated' };
}

function errorReading(frame) {
  return {
    value: isNumber(frame.mae) ? measured(frame.mae) : null,
    unit: 'tokens',
    note: 'mean, last 128 answers',
  };
}

function hitReading(frame) {
  const known = isNumber(frame.hit_rate);
  return {
    value: known ? whole(100 * frame.hit_rate) : null,
    unit: '%',
    note: 'of prompt tokens',
    share: known ? frame.hit_rate : undefined,
  };
}

function coverageReading(frame) {
  const known = isNumber(frame.eta_coverage);
  return {
    value: known ? whole(100 * frame.eta_coverage) : null,
    unit: '%',
    note: `in the 80${SPACE}% interval`,
    share: known ? frame.eta_coverage : undefined,
    goal: known ? COVERAGE_GOAL : undefined,
  };
}

class Gauges {
  constructor() {
    this.views = new Map();
    for (const [id, title] of GAUGES) byId('gauges').append(this.build(id, title));
    byId('legend').append(...STATE_NAMES.map((name) => this.buildState(name)));
  }

  build(id, title) {
    const view = {
      value: make('span', { className: 'value', textContent: '–' }),
      unit: make('span', { className: 'unit' }),
      note: make('span', { className: 'gauge-note' }),
      fill: make('span', { className: 'meter-fill' }),
      goal: make('span', { className: 'meter-goal', hidden: true }),
    };
    view.meter = make('span', { className: 'meter' }, view.fill, view.goal);
    view.meter.setAttribute('aria-hidden', 'true');
    this.views.set(id, view);
    return make('div', { className: 'gauge', id: `gauge-${id}` },
      make('dt', { textContent: title }),
      make('dd', {}, view.value, ' ', view.unit, view.note, view.meter));
  }

  buildState(name) {
    const count = make('span', { className: 'state-count', textContent: '0' });
    this.views.set(`state-${name}`, count);
    const { letter, title } = STATES[name];
    const mark = make('span', { className: `state-mark ${name}`, textContent: letter });
    mark.setAttribute('aria-hidden', 'true');
    return make('li', {}, mark, `${title.toLowerCase()} `, count);
  }

  /** Nothing is known, as after a change of the model. */
  forget() {
    for (const [id] of GAUGES) this.showReading(id, { value: null, note: '' });
    for (const name of STATE_NAMES) setText(this.views.get(`state-${name}`), '0');
  }

  show(frame, counts) {
    for (const [id, , reading] of GAUGES) this.showReading(id, reading(frame, counts));
    for (const name of STATE_NAMES) {
      setText(this.views.get(`state-${name}`), whole(counts[name]));
    }
  }

  showReading(id, { value, unit = '', note, share, goal }) {
    const view = this.views.get(id);
    setText(view.value, value === null ? '–' : value);
    setText(view.unit, value === null ? '' : unit);
    setText(view.note, note);
    view.meter.classList.toggle('bare', share === undefined);
    view.fill.classList.toggle('over', share > 1);
    setShare(view.fill, 'width', share || 0);
    setHidden(view.goal, goal === undefined);
    if (goal !== undefined) setShare(view.goal, 'left', goal);
  }
}
