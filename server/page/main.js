// Joins the parts of the page.

const GAUGE_MS = 250;
const MODELS_MS = 20000;
const HIDDEN_MS = 15000;

class Page {
  constructor() {
    theme.start();
    this.frame = null;
    this.link = new Link();
    this.sections = new Sections();
    this.key = new KeyForm(() => this.connect());
    this.models = new Models(() => this.changeModel());
    this.chat = new Chat(this.models);
    this.policy = new Policy(this.sections, this.models);
    this.gauges = new Gauges();
    this.queue = new Queue(this.chat.own);
    this.queueText = new QueueText(this.chat.own);
    this.past = new Past();
    this.plots = new Plots(this.past);
    this.whatIf = new WhatIf();
    this.showGauges = throttled(GAUGE_MS, () => {
      if (this.frame) this.gauges.show(this.frame, this.counts);
    });
    this.stream = new LiveStream({
      prepare: (signal) => this.prepare(signal),
      onEvent: (name, value) => this.onEvent(name, value),
      onLink: (state, error, delayMs) => this.link.show(state, error, delayMs),
    });
    api.onUnauthorized = () => this.key.ask();
    document.addEventListener('visibilitychange', () => this.onVisibility());
  }

  /** A page that nobody sees lets go of its stream; the history fills the gap afterwards. */
  onVisibility() {
    clearTimeout(this.hiding);
    if (document.hidden) this.hiding = setTimeout(() => this.stream.close(), HIDDEN_MS);
    else if (!this.stream.running) this.connect();
  }

  connect() {
    this.stream.open();
  }

  changeModel() {
    this.frame = null;
    this.past.forget();
    this.plots.draw();
    this.gauges.forget();
    this.queue.forget();
    this.queue.resize();
    this.whatIf.show({});
    this.connect();
  }

  /** Before each connection the models are read again: the server may be another one. */
  async prepare(signal) {
    await this.models.refresh(signal);
    if (this.models.isLoaded) await this.policy.refresh(signal);
    else this.sections.offer('policy', false);
    return `v1/trail/live?model=${encodeURIComponent(this.models.engine)}`;
  }

  onEvent(name, value) {
    if (name === 'history') {
      this.past.load(value);
      this.plots.draw();
    } else if (name === 'frame') {
      this.onFrame(value);
    } else if (name === 'whatif') {
      this.whatIf.show(value);
    }
  }

  onFrame(frame) {
    const wasLoaded = this.frame === null ? null : Boolean(this.frame.policy);
    this.frame = frame;
    if (wasLoaded !== null && wasLoaded !== Boolean(frame.policy)) this.readModels();
    this.counts = countStates(frame);
    this.showGauges();
    this.queue.show(frame);
    this.queueText.show(frame, this.counts);
    this.chat.live(frame);
    this.policy.live(frame.policy);
    if (this.past.add(frame, this.counts)) this.plots.draw();
    this.note(frame);
  }

  note(frame) {
    const policy = frame.policy ? `Policy ${frame.policy}` : 'Model not loaded';
    const device = frame.device ? `, ${frame.device}` : '';
    setText(byId('served'), `${policy}${device}`);
    const shown = counted(frame.requests.length, 'request');
    const rest = frame.omitted > 0 ? `, and ${whole(frame.omitted)} more that wait` : '';
    setText(byId('live-note'), `${policy}: ${shown}${rest}`);
  }

  /** A model may be loaded or unloaded while the page is open. */
  readModels() {
    if (document.hidden || this.link.state !== 'live') return;
    this.models.refresh().catch(() => {});
  }
}

const page = new Page();
page.connect();
setInterval(() => page.readModels(), MODELS_MS);
