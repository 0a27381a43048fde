// Controls of the scheduling policy, for an admin's key.

/** What a policy may be given, where the server does not say it. */
const POLICY_PARAMETERS = { trail: ['c', 'tail'] };

/** `trail:c=0.8,tail=1.0` as a name and parameters. */
function parsePolicy(text, choices) {
  if (choices.includes(text)) return { name: text, parameters: {} };
  const colon = text.indexOf(':');
  if (colon < 0) return { name: text, parameters: {} };
  const parameters = {};
  for (const part of text.slice(colon + 1).split(',')) {
    const [key, value] = part.split('=');
    if (value !== undefined) parameters[key.trim()] = value.trim();
  }
  return { name: text.slice(0, colon), parameters };
}

class Policy {
  constructor(sections) {
    this.sections = sections;
    this.form = byId('policy-form');
    this.name = byId('policy-name');
    this.fields = { c: byId('policy-c'), tail: byId('policy-tail') };
    this.allowed = {};
    this.served = null;
    this.name.addEventListener('change', () => this.enable());
    this.form.addEventListener('submit', (event) => this.apply(event));
    sections.offer('policy', false);
  }

  /** A key that is not an admin's may be refused: then there is nothing to show. */
  async refresh(signal) {
    try {
      const policy = await callJson('v1/trail/policy', { signal, asksKey: !api.key });
      this.sections.offer('policy', policy.may_change === true);
      this.show(policy);
    } catch (error) {
      if (!error.status) throw error;
      this.sections.offer('policy', false);
    }
  }

  /** A frame names another policy: somebody changed it. */
  live(name) {
    const changed = this.served !== null && name !== this.served;
    this.served = name;
    if (changed && !byId('policy').hidden) this.refresh().catch(() => {});
  }

  show({ policy, choices, parameters }) {
    this.allowed = parameters || POLICY_PARAMETERS;
    const parsed = parsePolicy(policy, choices);
    const names = choices.includes(parsed.name) ? choices : [parsed.name, ...choices];
    this.name.replaceChildren(...names.map((name) => make('option', { value: name }, name)));
    this.name.value = parsed.name;
    for (const [key, field] of Object.entries(this.fields)) {
      field.value = parsed.parameters[key] || '';
    }
    this.enable();
    setText(byId('policy-status'), `In force: ${policy}.`);
  }

  /** Only the fields that the policy has. */
  enable() {
    const names = this.allowed[this.name.value] || [];
    for (const [key, field] of Object.entries(this.fields)) field.disabled = !names.includes(key);
  }

  text() {
    const given = Object.entries(this.fields)
      .filter(([, field]) => !field.disabled && field.value !== '')
      .map(([key, field]) => `${key}=${field.valueAsNumber}`);
    return given.length > 0 ? `${this.name.value}:${given.join(',')}` : this.name.value;
  }

  async apply(event) {
    event.preventDefault();
    const policy = this.text();
    setText(byId('policy-status'), `Setting ${policy}.`);
    try {
      this.show(await callJson('v1/trail/policy', { body: { policy } }));
    } catch (error) {
      setText(byId('policy-status'), `Not changed. ${inWords(error)}`);
    }
  }
}
