// What the page says about its connection.

const BANNER_AFTER_MS = 700;

class Link {
  constructor() {
    this.state = '';
    this.banner = byId('banner');
    this.timer = 0;
  }

  show(state, error, delayMs) {
    const entered = state !== this.state;
    this.state = state;
    if (state === 'live' && !entered) return;
    setAttribute(byId('link'), 'data-state', state);
    setText(byId('link-text'), this.words(state));
    if (state === 'away') this.showAway(entered);
    else if (state === 'refused') this.showRefused(error, delayMs);
    else this.hide();
  }

  words(state) {
    const words = { live: 'live', away: 'reconnecting', key: 'key needed' };
    return words[state] || 'no live data';
  }

  /** A connection that is back at once shows no banner. */
  showAway(entered) {
    if (!entered) return;
    this.hide();
    this.timer = setTimeout(() => {
      this.say('The server is away. Reconnecting; what is shown is the last that it sent.');
    }, BANNER_AFTER_MS);
  }

  showRefused(error, delayMs) {
    this.hide();
    this.say(`${inWords(error)} Next try of the live view in ${duration(delayMs / 1000)}.`);
  }

  say(text) {
    setText(this.banner, text);
    this.banner.hidden = false;
  }

  hide() {
    clearTimeout(this.timer);
    this.banner.hidden = true;
    setText(this.banner, '');
  }
}
