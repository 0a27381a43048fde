// The live view for those who do not see it: a table of its head, and a summary.

const TABLE_ROWS = 20;
const TABLE_MS = 1000;
const SUMMARY_MS = 10000;

function cellsOf(request, own) {
  const times = request.last_ms;
  return [
    nameOf(request, own),
    STATES[request.state].title,
    request.place > 0 ? whole(request.place) : 'in the batch',
    `${whole(request.computed)} of ${whole(request.prompt)}`,
    whole(request.generated),
    leftOf(request),
    times ? duration(times[1] / 1000) : 'not known',
    whole(request.preemptions),
  ];
}

class QueueText {
  constructor(own) {
    this.own = own;
    this.body = byId('queue-rows');
    this.latest = null;
    this.showTable = throttled(TABLE_MS, () => this.table());
    this.showSummary = throttled(SUMMARY_MS, () => this.summary());
  }

  show(frame, counts) {
    this.latest = { frame, counts };
    this.showTable();
    this.showSummary();
  }

  table() {
    const requests = this.latest.frame.requests.slice(0, TABLE_ROWS);
    while (this.body.children.length > requests.length) this.body.lastChild.remove();
    while (this.body.children.length < requests.length) this.body.append(this.row());
    requests.forEach((request, i) => {
      const own = Boolean(request.id) && this.own.has(request.id);
      const { cells } = this.body.children[i];
      cellsOf(request, own).forEach((text, column) => setText(cells[column], text));
    });
  }

  row() {
    const name = make('th', { scope: 'row' });
    return make('tr', {}, name, ...Array.from({ length: 7 }, () => make('td')));
  }

  /** Not while the reader writes: it would speak over the answer. */
  summary() {
    if (byId('chat').contains(document.activeElement)) return;
    const { frame, counts } = this.latest;
    const parts = [`${whole(counts.batch)} running`, `${whole(counts.queue)} waiting`];
    if (isNumber(frame.tokens_per_s)) parts.push(`${whole(frame.tokens_per_s)} tokens per second`);
    setText(byId('queue-summary'), `${parts.join(', ')}.`);
  }
}
