// Draws the visible rows of the live view.

const AXIS_HEIGHT = 22;
const SMALL = '10px system-ui, sans-serif';
const EMPTY = '13px system-ui, sans-serif';
const LETTER = 'bold 10px ui-monospace, monospace';
/** Rows that are lower than this have no text. */
const TEXT_ROW = 13;
const NARROW = 520;

/** Where the columns of a row begin and end, in pixels. */
function columnsOf(width) {
  const narrow = width < NARROW;
  const prompt = { x: narrow ? 52 : 58, width: narrow ? 20 : 44 };
  const barX = prompt.x + prompt.width + (narrow ? 8 : 14);
  const right = narrow ? 48 : 60;
  return {
    narrow,
    mark: 8,
    place: narrow ? 34 : 38,
    letter: narrow ? 43 : 47,
    prompt,
    bar: { x: barX, width: Math.max(20, width - barX - right - 10) },
    end: width - 8,
  };
}

/** Indices of the first visible row, and of the one after the last. */
function visibleRows({ rows, rowHeight, top, height }) {
  const first = Math.floor(top / rowHeight);
  const count = Math.ceil((height - AXIS_HEIGHT) / rowHeight) + 1;
  return [first, Math.min(rows.length, first + count)];
}

class QueuePainter {
  constructor(canvas) {
    this.canvas = canvas;
    this.patterns = new Patterns();
  }

  /** `view`: rows, width, height, top, rowHeight, scale, marked and hovered keys, own ids. */
  paint(view) {
    this.view = view;
    this.pen = fitCanvas(this.canvas, view.width, view.height);
    this.columns = columnsOf(view.width);
    this.drawGrid();
    const [first, last] = visibleRows(view);
    this.pen.save();
    this.pen.beginPath();
    this.pen.rect(0, AXIS_HEIGHT, view.width, view.height - AXIS_HEIGHT);
    this.pen.clip();
    for (let i = first; i < last; i += 1) this.drawRow(view.rows[i], i);
    this.pen.restore();
    this.drawAxis();
    if (view.rows.length === 0) this.drawEmpty();
  }

  drawEmpty() {
    const { pen, view } = this;
    pen.font = EMPTY;
    pen.textAlign = 'center';
    pen.fillStyle = theme.colors.muted;
    pen.fillText(view.known ? 'No live requests' : 'No data yet', view.width / 2, view.height / 2);
  }

  /** The pixel of a count of output tokens. */
  x(tokens) {
    const { bar } = this.columns;
    return bar.x + bar.width * Math.min(1, tokens / this.view.scale.end);
  }

  drawGrid() {
    const { pen, view } = this;
    pen.fillStyle = theme.colors.line;
    for (const mark of view.scale.marks(this.columns.bar.width, 70)) {
      pen.fillRect(Math.round(this.x(mark)), AXIS_HEIGHT - 4, 1, view.height);
    }
  }

  drawAxis() {
    const { pen, view, columns } = this;
    pen.fillStyle = theme.colors.rule;
    pen.fillRect(0, AXIS_HEIGHT - 1, view.width, 1);
    pen.font = SMALL;
    pen.fillStyle = theme.colors.muted;
    pen.textBaseline = 'middle';
    const y = AXIS_HEIGHT / 2;
    const marks = view.scale.marks(columns.bar.width, 70);
    pen.textAlign = 'center';
    for (const mark of marks.slice(1)) {
      pen.textAlign = mark === view.scale.end ? 'right' : 'center';
      pen.fillText(whole(mark), this.x(mark) + (mark === view.scale.end ? 4 : 0), y);
    }
    pen.textAlign = 'left';
    pen.fillText('0 tokens', this.x(0) - 3, y);
    pen.textAlign = 'right';
    pen.fillText('ends in', columns.end, y);
    if (columns.narrow) return;
    pen.fillText('place', columns.place, y);
    pen.textAlign = 'left';
    pen.fillText('prompt', columns.prompt.x, y);
  }

  drawRow(request, index) {
    const { view } = this;
    const top = AXIS_HEIGHT + index * view.rowHeight - view.top;
    this.drawMark(request, top);
    const gap = view.rowHeight >= TEXT_ROW ? 3 : 1;
    const box = { y: Math.round(top) + gap, height: view.rowHeight - 2 * gap };
    this.drawPrompt(request, box);
    this.drawBar(request, box);
    this.drawWhisker(request, top + view.rowHeight / 2, box.height);
    if (view.rowHeight >= TEXT_ROW) this.drawText(request, top + view.rowHeight / 2);
    if (index > 0 && request.place > 0 && view.rows[index - 1].place === 0) this.drawEdge(top);
  }

  /** The row under the pointer, the selected one, and this page's own. */
  drawMark(request, top) {
    const { pen, view } = this;
    const height = view.rowHeight;
    if (request.id && view.own.has(request.id)) {
      pen.fillStyle = theme.colors.mark;
      pen.fillRect(0, top, view.width, height);
      pen.fillStyle = theme.colors.accent;
      pen.beginPath();
      pen.moveTo(2, top + 1);
      pen.lineTo(9, top + height / 2);
      pen.lineTo(2, top + height - 1);
      pen.fill();
    }
    if (request.key !== view.selected && request.key !== view.hovered) return;
    pen.strokeStyle = request.key === view.selected ? theme.colors.accent : theme.colors.muted;
    pen.lineWidth = request.key === view.selected ? 2 : 1;
    pen.strokeRect(1, top + 0.5, view.width - 2, height - 1);
  }

  drawPrompt(request, box) {
    const { pen } = this;
    const { x, width } = this.columns.prompt;
    const y = box.y + Math.floor(box.height / 2) - 2;
    pen.fillStyle = theme.colors.line;
    pen.fillRect(x, y, width, 4);
    pen.fillStyle = theme.colors.muted;
    pen.fillRect(x, y, width * Math.min(1, request.computed / Math.max(1, request.prompt)), 4);
  }

  drawBar(request, box) {
    const { pen } = this;
    const color = theme.colors[request.state];
    const [start, now] = [this.x(0), this.x(request.generated)];
    pen.fillStyle = color;
    pen.fillRect(start, box.y, now - start, box.height);
    if (!isNumber(request.remaining)) return;
    const width = Math.max(2, this.x(request.generated + request.remaining) - now);
    this.fillPredicted(request.state, now, width, box);
    pen.strokeStyle = color;
    pen.lineWidth = 1;
    pen.strokeRect(now + 0.5, box.y + 0.5, width - 1, box.height - 1);
  }

  fillPredicted(state, x, width, box) {
    const { pen } = this;
    if (state === 'waiting') return;
    if (state === 'running') {
      pen.globalAlpha = 0.3;
      pen.fillStyle = theme.colors[state];
    } else {
      pen.fillStyle = this.patterns.of(pen, state);
    }
    pen.fillRect(x, box.y, width, box.height);
    pen.globalAlpha = 1;
  }

  /** The interval; it is open to the right where it leaves the axis. */
  drawWhisker(request, middle, barHeight) {
    if (!request.interval) return;
    const { pen } = this;
    const [low, high] = request.interval.map((tokens) => request.generated + tokens);
    const [x1, x2] = [this.x(low), this.x(high)];
    const y = Math.round(middle) - 0.5;
    const cap = Math.max(2, Math.floor(barHeight / 2) - 1);
    pen.strokeStyle = theme.colors.ink;
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(x1, y);
    pen.lineTo(x2, y);
    pen.moveTo(Math.round(x1) + 0.5, y - cap);
    pen.lineTo(Math.round(x1) + 0.5, y + cap);
    if (high <= this.view.scale.end) {
      pen.moveTo(Math.round(x2) - 0.5, y - cap);
      pen.lineTo(Math.round(x2) - 0.5, y + cap);
    } else {
      pen.moveTo(x2 - 3, y - 3);
      pen.lineTo(x2 + 1, y);
      pen.lineTo(x2 - 3, y + 3);
    }
    pen.stroke();
  }

  drawText(request, middle) {
    const { pen, columns } = this;
    pen.textBaseline = 'middle';
    pen.font = SMALL;
    pen.fillStyle = theme.colors.muted;
    pen.textAlign = 'right';
    if (request.place > 0) pen.fillText(request.place, columns.place, middle);
    if (request.last_ms) {
      pen.fillStyle = theme.colors.ink;
      pen.fillText(duration(request.last_ms[1] / 1000), columns.end, middle);
    }
    pen.font = LETTER;
    pen.textAlign = 'center';
    pen.fillStyle = theme.colors[request.state];
    pen.fillText(STATES[request.state].letter, columns.letter, middle);
  }

  /** Between the batch and those that wait. */
  drawEdge(top) {
    this.pen.fillStyle = theme.colors.ink;
    this.pen.fillRect(0, Math.round(top), this.view.width, 1);
  }
}
