// The server's models, and the one that the reader chose.

/** An embedding model has neither a state nor a parent, and answers no chat. */
function isChatModel(card) {
  return card.state !== undefined || card.parent !== undefined;
}

class Models {
  constructor(onChange) {
    this.select = byId('model');
    this.cards = [];
    this.select.addEventListener('change', () => onChange());
  }

  get name() {
    return this.select.value;
  }

  /** The name under which the engine reports: an adapter's is that of its model. */
  get engine() {
    const card = this.cards.find((other) => other.id === this.name);
    return (card && card.parent) || this.name;
  }

  /** False if a call that needs the engine would load it first. */
  get isLoaded() {
    const card = this.cards.find((other) => other.id === this.engine);
    return !card || card.state === undefined || card.state === 'loaded';
  }

  async refresh(signal) {
    const list = await callJson('v1/models', { signal });
    const cards = (list.data || []).filter(isChatModel);
    this.cards = cards.length > 0 ? cards : list.data || [];
    this.show();
  }

  show() {
    const chosen = this.name;
    const labels = this.cards.map((card) => this.label(card));
    const shown = [...this.select.options].map((option) => option.textContent);
    if (labels.join('\n') === shown.join('\n')) return;
    const options = this.cards.map((card, i) =>
      make('option', { value: card.id, textContent: labels[i] }));
    this.select.replaceChildren(...options);
    if (this.cards.some((card) => card.id === chosen)) this.select.value = chosen;
  }

  label(card) {
    return card.state && card.state !== 'loaded' ? `${card.id} (${card.state})` : card.id;
  }
}
