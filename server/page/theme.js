// Light and dark: the system's, until the reader chooses one.

const THEMES = ['auto', 'light', 'dark'];
const COLORS = ['ink', 'muted', 'line', 'rule', 'panel', 'field', 'accent', 'mark', 'running',
  'prefill', 'waiting', 'paused', 'swapped'];

const theme = {
  choice: 'auto',
  /** Colours by name, for canvases. */
  colors: {},
  listeners: [],
  dark: matchMedia('(prefers-color-scheme: dark)'),

  start() {
    this.choice = this.remembered();
    this.dark.addEventListener('change', () => this.apply());
    byId('theme').addEventListener('click', () => this.next());
    this.apply();
  },

  remembered() {
    try {
      const stored = localStorage.getItem('trail-theme');
      return THEMES.includes(stored) ? stored : 'auto';
    } catch {
      return 'auto';
    }
  },

  next() {
    this.choice = THEMES[(THEMES.indexOf(this.choice) + 1) % THEMES.length];
    try {
      localStorage.setItem('trail-theme', this.choice);
    } catch {
      // Storage is off: the choice lasts as long as the page.
    }
    this.apply();
  },

  apply() {
    const system = this.dark.matches ? 'dark' : 'light';
    const root = document.documentElement;
    root.dataset.theme = this.choice === 'auto' ? system : this.choice;
    setText(byId('theme'), `Theme: ${this.choice}`);
    const style = getComputedStyle(root);
    for (const name of COLORS) this.colors[name] = style.getPropertyValue(`--${name}`).trim();
    for (const listener of this.listeners) listener();
  },
};
