// The system prompt and the sampling fields. An empty field leaves the choice to the server.

const SAMPLING = ['temperature', 'top_p', 'max_tokens', 'seed'];

class Sampling {
  constructor() {
    this.details = byId('settings');
    this.form = byId('sampling');
    this.form.addEventListener('submit', (event) => event.preventDefault());
  }

  /** Whether all fields are valid; shows the first that is not. */
  check() {
    if (this.form.checkValidity()) return true;
    this.details.open = true;
    this.form.reportValidity();
    return false;
  }

  get system() {
    return byId('system').value.trim();
  }

  get fields() {
    const fields = {};
    for (const name of SAMPLING) {
      const value = byId(name).valueAsNumber;
      if (!Number.isNaN(value)) fields[name] = value;
    }
    return fields;
  }
}
