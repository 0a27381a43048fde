// Controls of the scheduling policy, for an admin's key.

class Policy {
  constructor(sections, models) {
    this.sections = sections;
    this.models = models;
    this.form = byId('policy-form');
    this.name = byId('policy-name');
    this.fields = { c: byId('policy-c'), tail: byId('policy-tail') };
    this.choices = [];
    this.served = null;
    this.name.addEventListener('change', () => this.enable());
    this.form.addEventListener('submit', (event) => this.apply(event));
    sections.offer('policy', false);
  }

  /** A key that is not an admin's may be refused: then there is nothing to show. */
  async refresh(signal) {
    try {
      const path = `v1/trail/policy?model=${encodeURIComponent(this.models.engine)}`;
      const policy = await callJson(path, { signal, asksKey: !api.key });
      this.sections.offer('policy', policy.may_change === true);
      this.show(policy);
    } catch (error) {
      if (!error.status) throw error;
      this.sections.offer('policy', false);
    }
  }

  /**
   * The policy that a frame names, '' of a model that is not loaded. Another one than before:
   * somebody changed it, or the model was loaded.
   */
  live(name) {
    const changed = this.served !== null && name !== this.served;
    this.served = name;
    if (changed && name) this.refresh().catch(() => {});
    else if (changed) this.sections.offer('policy', false);
  }

  show(policy) {
    this.choices = policy.choices;
    const names = this.choices.map((choice) => choice.name);
    if (!names.includes(policy.name)) names.unshift(policy.name);
    this.name.replaceChildren(...names.map((name) => make('option', { value: name }, name)));
    this.name.value = policy.name;
    this.fields.c.value = policy.c ?? '';
    this.fields.tail.value = policy.tail_bound ?? '';
    this.enable();
    setText(byId('policy-status'), `In force: ${policy.policy}.`);
  }

  /** Only the fields that the policy has. */
  enable() {
    const choice = this.choices.find(({ name }) => name === this.name.value) || {};
    this.fields.c.disabled = !choice.has_c;
    this.fields.tail.disabled = !choice.has_tail_bound;
    for (const field of Object.values(this.fields)) {
      field.placeholder = field.disabled ? '' : 'default';
    }
  }

  change() {
    const given = (field) => (field.disabled || field.value === '' ? null : field.valueAsNumber);
    const { c, tail } = this.fields;
    return {
      model: this.models.engine,
      policy: this.name.value,
      c: given(c),
      tail_bound: given(tail),
    };
  }

  async apply(event) {
    event.preventDefault();
    const change = this.change();
    setText(byId('policy-status'), `Setting ${change.policy}.`);
    try {
      this.show(await callJson('v1/trail/policy', { body: change }));
    } catch (error) {
      setText(byId('policy-status'), `Not changed. ${inWords(error)}`);
    }
  }
}
