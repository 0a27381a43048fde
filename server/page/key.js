// The form that asks for the server's key.

class KeyForm {
  /** `onKey` is called when another key is to be used. */
  constructor(onKey) {
    this.form = byId('key-form');
    this.field = byId('key');
    this.opener = byId('key-open');
    this.onKey = onKey;
    this.opener.addEventListener('click', () => this.toggle());
    byId('key-close').addEventListener('click', () => this.close());
    this.form.addEventListener('submit', (event) => this.submit(event));
    this.form.addEventListener('keydown', (event) => {
      if (event.key !== 'Escape') return;
      event.preventDefault();
      this.close();
    });
  }

  /** A call returned 401. */
  ask() {
    this.note(api.key ? 'The server did not accept this key.' : 'This server asks for a key.');
    if (this.form.hidden) this.open();
  }

  note(text) {
    setText(byId('key-note'), text);
  }

  toggle() {
    if (!this.form.hidden) {
      this.close();
      return;
    }
    this.note(api.key ? 'A key is in use.' : 'No key is in use.');
    this.open();
  }

  open() {
    this.form.hidden = false;
    this.opener.setAttribute('aria-expanded', 'true');
    this.field.focus();
  }

  close() {
    if (this.form.contains(document.activeElement)) this.opener.focus();
    this.form.hidden = true;
    this.opener.setAttribute('aria-expanded', 'false');
  }

  submit(event) {
    event.preventDefault();
    const key = this.field.value.trim();
    if (/[^\x21-\x7e]/.test(key)) {
      this.note('A key has visible ASCII characters only.');
      return;
    }
    api.key = key;
    this.field.value = '';
    this.close();
    setText(this.opener, key ? 'Key in use' : 'Key');
    this.onKey();
  }
}
