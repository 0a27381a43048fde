// The tabs of a narrow window: it shows one section at a time.

class Sections {
  constructor() {
    this.main = byId('main');
    this.buttons = [...byId('sections').querySelectorAll('button')];
    for (const button of this.buttons) {
      button.addEventListener('click', () => this.show(button.dataset.section));
    }
    this.show('chat');
    const above = new ResizeObserver(() => this.measure());
    for (const id of ['stack', 'sections']) above.observe(byId(id));
  }

  /** The chat is as high as the window less what is above it. */
  measure() {
    const height = byId('stack').offsetHeight + byId('sections').offsetHeight;
    document.documentElement.style.setProperty('--above', `${height}px`);
  }

  show(name) {
    this.main.dataset.section = name;
    for (const button of this.buttons) {
      const current = button.dataset.section === name;
      if (current) button.setAttribute('aria-current', 'true');
      else button.removeAttribute('aria-current');
    }
  }

  /** A section that this server does not have. */
  offer(name, offered) {
    const button = this.buttons.find((other) => other.dataset.section === name);
    setHidden(button, !offered);
    setHidden(byId(name), !offered);
    if (!offered && this.main.dataset.section === name) this.show('chat');
  }
}
