// Line plots of the last 15 minutes.

/**
 * `lines`: `[column, label, colour, dashes]`; `show(value)` is a value with its unit, `axis(value)`
 * is one at the axis; `top(past)` is the end of the axis where the values do not give it.
 */
const PLOTS = [
  {
    title: 'Requests',
    lines: [['running', 'running', 'running', []], ['waiting', 'waiting', 'ink', [3, 2]]],
    show: whole,
  },
  {
    title: 'KV blocks',
    lines: [['blocks', 'used', 'prefill', []]],
    show: whole,
    top: (past) => past.blocks,
  },
  {
    title: 'Step time',
    lines: [['step_ms', '', 'prefill', []]],
    show: (value) => `${measured(value)}${SPACE}ms`,
  },
  {
    title: 'Throughput',
    lines: [['tokens_per_s', '', 'prefill', []]],
    show: (value) => `${measured(value)} tokens/s`,
  },
  {
    title: 'Prediction error',
    lines: [['mae', '', 'prefill', []]],
    show: (value) => `${measured(value)} tokens`,
  },
  {
    title: 'Prefix hit rate',
    lines: [['hit_rate', '', 'prefill', []]],
    show: percent,
    axis: percent,
    top: () => 1,
  },
];

const PLOT_HEIGHT = 92;
const EDGE = { top: 8, right: 6, bottom: 16, left: 38 };

/** Finite values of a plot's columns. */
function valuesOf(plot, points) {
  return plot.lines.flatMap(([column]) => points.map((point) => point[column])).filter(isNumber);
}

function axisLabel(plot, value) {
  if (plot.axis) return plot.axis(value);
  return value >= 10000 ? `${whole(value / 1000)}k` : measured(value).replace(/\.0$/, '');
}

class PlotPainter {
  constructor(canvas, plot) {
    this.canvas = canvas;
    this.plot = plot;
  }

  /** `view`: points, now, everyS, the axis' top if it is given, and the point that is read. */
  paint(view) {
    const width = this.canvas.parentNode.clientWidth;
    if (width === 0) return;
    this.view = view;
    this.width = width;
    this.pen = fitCanvas(this.canvas, width, PLOT_HEIGHT);
    const values = valuesOf(this.plot, view.points);
    const most = Math.max(0, ...values);
    this.top = view.top || (most > 0 ? roundUp(most, FINE) : 1);
    this.drawAxes(values.length > 0);
    for (const line of this.plot.lines) this.drawLine(line);
    if (view.read) this.drawReading();
  }

  x(at) {
    const share = 1 - (this.view.now - at) / KEPT_S;
    return EDGE.left + share * (this.width - EDGE.left - EDGE.right);
  }

  y(value) {
    return EDGE.top + (1 - value / this.top) * (PLOT_HEIGHT - EDGE.top - EDGE.bottom);
  }

  drawAxes(known) {
    const { pen } = this;
    pen.font = SMALL;
    pen.textBaseline = 'middle';
    pen.textAlign = 'right';
    for (const value of [0, this.top / 2, this.top]) {
      const y = Math.round(this.y(value));
      pen.fillStyle = value === 0 ? theme.colors.rule : theme.colors.line;
      pen.fillRect(EDGE.left, y, this.width - EDGE.left - EDGE.right, 1);
      pen.fillStyle = theme.colors.muted;
      if (known) pen.fillText(axisLabel(this.plot, value), EDGE.left - 5, y);
    }
    this.drawTimes();
  }

  drawTimes() {
    const { pen } = this;
    const y = PLOT_HEIGHT - EDGE.bottom / 2 + 1;
    for (const minutes of [15, 10, 5, 0]) {
      const x = this.x(this.view.now - 60 * minutes);
      pen.fillStyle = theme.colors.rule;
      pen.fillRect(Math.round(x) - (minutes === 0 ? 1 : 0), PLOT_HEIGHT - EDGE.bottom, 1, 3);
      pen.fillStyle = theme.colors.muted;
      pen.textAlign = { 15: 'left', 0: 'right' }[minutes] || 'center';
      pen.fillText({ 15: '−15 min', 0: 'now' }[minutes] || `−${minutes}`, x, y);
    }
  }

  /** A line with gaps where nothing was measured. */
  drawLine([column, , color, dashes]) {
    const { pen } = this;
    pen.strokeStyle = theme.colors[color];
    pen.lineWidth = 1.25;
    pen.lineJoin = 'round';
    pen.setLineDash(dashes);
    pen.beginPath();
    let before = -Infinity;
    for (const point of this.view.points) {
      if (!isNumber(point[column])) continue;
      const joined = point.at - before < 4 * this.view.everyS;
      const [x, y] = [this.x(point.at), this.y(point[column])];
      if (joined) pen.lineTo(x, y);
      else pen.moveTo(x, y);
      before = point.at;
    }
    pen.stroke();
    pen.setLineDash([]);
  }

  drawReading() {
    const { pen, view } = this;
    const x = Math.round(this.x(view.read.at));
    pen.fillStyle = theme.colors.muted;
    pen.fillRect(x, EDGE.top, 1, PLOT_HEIGHT - EDGE.top - EDGE.bottom);
    for (const [column, , color] of this.plot.lines) {
      if (!isNumber(view.read[column])) continue;
      pen.fillStyle = theme.colors[color];
      pen.beginPath();
      pen.arc(x + 0.5, this.y(view.read[column]), 2.5, 0, 2 * Math.PI);
      pen.fill();
    }
  }
}

class Plots {
  constructor(past) {
    this.past = past;
    this.box = byId('plots');
    /** The time that is read, in seconds before now; null: now. */
    this.ago = null;
    this.views = PLOTS.map((plot) => this.build(plot));
    this.frame = 0;
    this.box.addEventListener('pointermove', (event) => this.point(event));
    this.box.addEventListener('pointerleave', () => this.read(null));
    this.box.addEventListener('keydown', (event) => this.onKey(event));
    this.box.addEventListener('blur', () => this.read(null));
    theme.listeners.push(() => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.box);
  }

  build(plot) {
    const value = make('span', { className: 'plot-value' });
    const canvas = make('canvas');
    canvas.setAttribute('role', 'img');
    canvas.setAttribute('aria-label', plot.title);
    const caption = make('figcaption', {}, make('span', { textContent: plot.title }), value);
    const figure = make('figure', { className: 'plot' }, caption,
      make('div', { className: 'plot-box' }, canvas));
    this.box.append(figure);
    return { plot, value, canvas, painter: new PlotPainter(canvas, plot) };
  }

  point(event) {
    const figure = event.target.closest('.plot-box');
    if (!figure) return;
    const box = figure.getBoundingClientRect();
    const width = box.width - EDGE.left - EDGE.right;
    const share = (event.clientX - box.left - EDGE.left) / width;
    this.read(KEPT_S * (1 - Math.min(1, Math.max(0, share))));
  }

  read(ago) {
    if (ago === this.ago) return;
    this.ago = ago;
    this.draw();
  }

  onKey(event) {
    const steps = { ArrowLeft: 10, ArrowRight: -10, Home: KEPT_S, End: -KEPT_S };
    if (!(event.key in steps)) return;
    event.preventDefault();
    this.read(Math.min(KEPT_S, Math.max(0, (this.ago || 0) + steps[event.key])));
    setText(byId('plots-reading'), this.readingText());
  }

  readingText() {
    const { points } = this.past;
    const read = this.ago === null ? points[points.length - 1] : this.reading();
    if (!read) return 'No measurements.';
    const values = PLOTS.map((plot) => `${plot.title}: ${this.valueText(plot, read)}`);
    return `${this.agoText(read)}. ${values.join('. ')}.`;
  }

  reading() {
    return this.ago === null ? null : this.past.nearest(Past.now() - this.ago);
  }

  agoText(read) {
    const ago = Past.now() - read.at;
    return ago < 2 * this.past.everyS ? 'Now' : `${duration(ago)} ago`;
  }

  valueText(plot, point) {
    const parts = plot.lines.filter(([column]) => isNumber(point[column]))
      .map(([column, label]) => `${plot.show(point[column])}${label ? ` ${label}` : ''}`);
    return parts.join(', ') || '–';
  }

  draw() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.paint();
    });
  }

  paint() {
    const { points, everyS } = this.past;
    const read = this.reading();
    const shown = read || points[points.length - 1];
    const view = { points, everyS, read, now: Past.now() };
    for (const { plot, value, canvas, painter } of this.views) {
      painter.paint({ ...view, top: plot.top && plot.top(this.past) });
      const text = shown ? this.valueText(plot, shown) : '–';
      setText(value, text);
      setAttribute(canvas, 'aria-label', `${plot.title}, last 15 minutes: ${text}`);
    }
    setText(byId('history-note'), read ? `at ${this.agoText(read).toLowerCase()}` : '');
  }
}
