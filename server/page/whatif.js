// The same minutes' traffic under each policy, as the server simulates it.

class WhatIf {
  constructor() {
    this.table = byId('whatif-table');
    this.body = byId('whatif-rows');
  }

  show(comparison) {
    const policies = [...(comparison.policies || [])].filter((policy) => isNumber(policy.mean_s));
    const served = policies.find((policy) => policy.name === comparison.served);
    const empty = policies.length === 0 || !(comparison.requests > 0);
    this.table.hidden = empty;
    setText(byId('whatif-text'), empty ? 'No requests to compare yet.'
      : this.lead(comparison, policies, served));
    if (empty) return;
    setText(byId('whatif-caption'), this.caption(comparison));
    setText(byId('whatif-against'), `Per request, against ${comparison.served}`);
    policies.sort((a, b) => a.mean_s - b.mean_s);
    const top = {
      mean: Math.max(...policies.map((policy) => policy.mean_s)),
      p99: Math.max(...policies.map((policy) => policy.p99_s || 0)),
    };
    const rows = policies.map((policy) => this.row(policy, served, top));
    this.body.replaceChildren(...rows);
  }

  caption({ requests, window_s: windowS }) {
    return `${counted(requests, 'request')} of the last ${duration(windowS)}; each policy`
      + ' simulated with the same arrivals.';
  }

  /** One sentence: the served policy against first come, first served, or the best other. */
  lead({ requests }, policies, served) {
    if (!served) return `${counted(requests, 'request')} compared.`;
    const others = policies.filter((policy) => policy !== served);
    if (others.length === 0) return `Only ${served.name} was simulated.`;
    const other = others.find((policy) => policy.name === 'fcfs')
      || others.reduce((best, policy) => (policy.mean_s < best.mean_s ? policy : best));
    const saved = other.mean_s - served.mean_s;
    if (Math.abs(saved) < 0.005) return `${served.name} and ${other.name} take the same time.`;
    const verb = saved > 0 ? 'saves' : 'loses';
    return `${served.name} ${verb} ${this.difference(saved)} per request against ${other.name}`
      + `${this.tail(served, other)}.`;
  }

  tail(served, other) {
    if (!isNumber(served.p99_s) || !isNumber(other.p99_s)) return '';
    const more = served.p99_s - other.p99_s;
    if (Math.abs(more) < 0.005) return '; p99 is the same';
    return `; p99 is ${this.difference(more)} ${more > 0 ? 'longer' : 'shorter'}`;
  }

  difference(s) {
    const size = Math.abs(s);
    return size < 0.995 ? `${size.toFixed(2)}${SPACE}s` : duration(size);
  }

  row(policy, served, top) {
    const isServed = policy === served;
    const name = make('th', { scope: 'row' }, policy.name);
    if (isServed) name.append(' ', make('span', { className: 'tag', textContent: 'served' }));
    const row = make('tr', { className: isServed ? 'served-row' : '' }, name,
      this.barCell(policy.mean_s, top.mean),
      this.barCell(policy.p99_s, top.p99),
      make('td', { textContent: this.share(policy.smooth_share) }),
      this.differenceCell(policy, served));
    return row;
  }

  barCell(value, top) {
    if (!isNumber(value)) return make('td', { textContent: '–' });
    const fill = make('span', { className: 'bar-fill' });
    setShare(fill, 'width', top > 0 ? value / top : 0);
    return make('td', {},
      make('span', { className: 'number', textContent: this.latency(value) }),
      make('span', { className: 'bar' }, fill));
  }

  share(of) {
    return isNumber(of) ? `${Math.round(100 * of)}${SPACE}%` : '–';
  }

  latency(s) {
    return s < 9.995 ? `${s.toFixed(2)}${SPACE}s` : duration(s);
  }

  differenceCell(policy, served) {
    if (!served || policy === served) return make('td', { textContent: '–' });
    const saved = served.mean_s - policy.mean_s;
    if (Math.abs(saved) < 0.005) return make('td', { textContent: 'the same' });
    return make('td', {
      className: saved > 0 ? 'saved' : 'lost',
      textContent: `${this.difference(saved)} ${saved > 0 ? 'saved' : 'lost'}`,
    });
  }
}
