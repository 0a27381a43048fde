// The live view: every request as a bar, in the scheduler's order.

const TALL_ROW = 20;
const MEDIUM_ROW = 14;
/** Rows get tall again only when they then fill less than this share of the view. */
const GROW_BELOW = 0.85;
const DETAIL_MS = 250;

class Queue {
  /** `own`: ids of the requests sent from this page. */
  constructor(own) {
    this.own = own;
    this.box = byId('queue');
    this.spacer = byId('queue-spacer');
    this.painter = new QueuePainter(byId('queue-canvas'));
    this.scale = new QueueScale();
    this.forget();
    this.rowHeight = TALL_ROW;
    this.selected = null;
    this.hovered = null;
    this.frame = 0;
    this.showDetail = throttled(DETAIL_MS, () => this.detail());
    this.drawSeldom = throttled(1000, () => this.draw());
    this.listen();
  }

  listen() {
    this.box.addEventListener('scroll', () => this.draw(), { passive: true });
    this.box.addEventListener('pointermove', (event) => this.hover(event));
    this.box.addEventListener('pointerleave', () => this.hover(null));
    this.box.addEventListener('click', (event) => this.pick(event));
    this.box.addEventListener('keydown', (event) => this.onKey(event));
    byId('row-size').addEventListener('change', () => this.resize());
    theme.listeners.push(() => {
      this.painter.patterns.forget();
      this.draw();
    });
    new ResizeObserver(() => this.resize()).observe(this.box);
  }

  /** Nothing is known, as after a change of the model. */
  forget() {
    this.rows = [];
    this.known = false;
  }

  show(frame) {
    this.known = true;
    this.rows = frame.requests;
    if (reducedMotion.matches) this.drawSeldom();
    else this.resize();
    this.showDetail();
  }

  resize() {
    this.fitRows();
    const content = AXIS_HEIGHT + this.rows.length * this.rowHeight;
    const rest = `${Math.max(0, content - this.box.clientHeight)}px`;
    if (this.spacer.style.height !== rest) this.spacer.style.height = rest;
    this.draw();
  }

  /** Tall rows if all of them fit, else medium ones to scroll through. */
  fitRows() {
    const chosen = byId('row-size').value;
    const space = this.box.clientHeight - AXIS_HEIGHT;
    const room = this.rowHeight === TALL_ROW ? space : GROW_BELOW * space;
    const fitting = this.rows.length * TALL_ROW <= room ? TALL_ROW : MEDIUM_ROW;
    this.rowHeight = chosen === 'auto' ? fitting : Number(chosen);
  }

  draw() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.paint();
    });
  }

  paint() {
    const { clientWidth: width, clientHeight: height, scrollTop: top } = this.box;
    if (width === 0 || height === 0) return;
    const { rows, known, rowHeight, scale, own, selected, hovered } = this;
    const view = { width, height, top, rows, known, rowHeight, scale, own, selected, hovered };
    scale.update(rows.slice(...visibleRows(view)));
    this.painter.paint(view);
  }

  /** The request at a pointer's place. */
  at(event) {
    const y = event.clientY - this.box.getBoundingClientRect().top - AXIS_HEIGHT;
    if (y < 0) return null;
    return this.rows[Math.floor((y + this.box.scrollTop) / this.rowHeight)] || null;
  }

  hover(event) {
    const request = event && this.at(event);
    const key = request ? request.key : null;
    if (key === this.hovered) return;
    this.hovered = key;
    this.draw();
    this.detail();
  }

  pick(event) {
    const request = this.at(event);
    this.select(request && request.key !== this.selected ? request : null);
  }

  select(request) {
    this.selected = request ? request.key : null;
    this.draw();
    this.detail();
  }

  indexOf(key) {
    return this.rows.findIndex((request) => request.key === key);
  }

  onKey(event) {
    const page = Math.max(1, Math.floor(this.box.clientHeight / this.rowHeight) - 2);
    const end = this.rows.length;
    const steps = {
      ArrowUp: -1, ArrowDown: 1, PageUp: -page, PageDown: page, Home: -end, End: end,
    };
    if (event.key === 'Escape' && this.selected !== null) {
      event.preventDefault();
      this.select(null);
    }
    if (!(event.key in steps) || end === 0) return;
    event.preventDefault();
    this.move(steps[event.key]);
  }

  /** Selects another row and says what it is. */
  move(step) {
    const from = this.selected === null ? -1 : this.indexOf(this.selected);
    const index = Math.min(this.rows.length - 1, Math.max(0, from + step));
    this.select(this.rows[index]);
    this.reveal(index);
    setText(byId('queue-selected'), this.sentences(this.rows[index]).join(' '));
  }

  reveal(index) {
    const top = index * this.rowHeight;
    const space = this.box.clientHeight - AXIS_HEIGHT;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (top + this.rowHeight > this.box.scrollTop + space) {
      this.box.scrollTop = top + this.rowHeight - space;
    }
  }

  sentences(request) {
    return describe(request, Boolean(request.id) && this.own.has(request.id));
  }

  /** Words on the row under the pointer, or else on the selected one. */
  detail() {
    const key = this.hovered === null ? this.selected : this.hovered;
    const box = byId('queue-detail');
    if (key === null) {
      setText(box, 'Point at a row, or select one with the arrow keys, to read its state.');
      return;
    }
    const request = this.rows[this.indexOf(key)];
    if (!request) {
      setText(box, 'This request has ended.');
      return;
    }
    const [head, ...rest] = this.sentences(request);
    const strong = box.querySelector('strong') || make('strong');
    setText(strong, head);
    const text = ` ${rest.join(' ')}`;
    if (strong.parentNode !== box) box.replaceChildren(strong, text);
    else if (box.lastChild.data !== text) box.lastChild.data = text;
  }
}
