// The page at `/` of a running trail-rt server in a headless Chromium: it loads, chats, stops,
// shows a hundred requests as they move, and is accessible and fits a narrow window.
//
//     tests/clients/run.sh               # installs the packages and runs this
//     node page_check.mjs http://127.0.0.1:8000 [PROGRAM]
//
// With PROGRAM, trail-rt, it also restarts another server below an open page, and opens the page of
// one with keys and two models (run it from the root of the repository, whose model they are).
// $CHROMIUM is the browser, else `chromium`; $REQUESTS the number of requests, else 100. The server
// needs no key and has room for them. Prints a line a check, or what went wrong; exit code 1 if
// something did.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import axe from 'axe-core';
import puppeteer from 'puppeteer-core';

const base = process.argv[2].replace(/\/$/, '');
const program = process.argv[3];
const REQUESTS = Number(process.env.REQUESTS || 100);
const WIDE = { width: 1280, height: 900 };
const NARROW = { width: 360, height: 780 };
const SECTIONS = ['chat', 'live', 'history', 'whatif', 'policy'];
const QUESTION = 'Tell me a story about a dark duck named Zoe.';
/** Answers that must have ended before the server compares policies, and some more. */
const ENDED = 30;

const sleep = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });
let failed = 0;

function expect(holds, what) {
  if (!holds) throw new Error(what);
}

async function check(name, action) {
  try {
    console.log(`ok   page: ${name}: ${await action()}`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL page: ${name}: ${String(error.message || error).slice(0, 400)}`);
  }
}

// Requests beside those of the page.

const models = (await (await fetch(`${base}/v1/models`)).json()).data;
const model = models[0].id;

function complete(fields, signal) {
  const headers = { 'content-type': 'application/json' };
  const body = JSON.stringify({ model, prompt: 'The weather', ignore_eos: true, ...fields });
  return fetch(`${base}/v1/completions`, { method: 'POST', headers, body, signal });
}

/** Keeps `count` streams open; ends them when it is told to. */
class Load {
  constructor(count) {
    this.open = new Set();
    this.ends = false;
    this.streams = Array.from({ length: count }, (_, i) => this.keep(i));
  }

  async keep(i) {
    for (let n = 0; !this.ends; n += 1) {
      const abort = new AbortController();
      this.open.add(abort);
      const fields = { stream: true, max_tokens: 700, prompt: `Number ${i} of ${n}:` };
      const done = await complete(fields, abort.signal).then(async (response) => {
        for await (const piece of response.body) void piece;
        return response.ok;
      }).catch(() => false);
      this.open.delete(abort);
      if (!done && !this.ends) await sleep(500);
    }
  }

  async end() {
    this.ends = true;
    for (const abort of this.open) abort.abort();
    await Promise.all(this.streams);
  }
}

// The browser.

const browser = await puppeteer.launch({
  executablePath: process.env.CHROMIUM || '/usr/bin/chromium',
  args: ['--no-sandbox', '--disable-dev-shm-usage'],
});
/** What pages logged as errors, and asked of other origins. */
const faults = [];

async function open({ size = WIDE, scheme = 'light' } = {}) {
  const tab = await browser.newPage();
  tab.setDefaultTimeout(60_000);
  tab.on('pageerror', (error) => faults.push(String(error.stack || error)));
  tab.on('console', (message) => {
    if (['error', 'warn', 'warning'].includes(message.type())) faults.push(message.text());
  });
  tab.on('request', (request) => {
    const url = new URL(request.url());
    if (url.protocol !== 'data:' && url.origin !== new URL(base).origin) {
      faults.push(`asked for ${request.url()}`);
    }
  });
  await tab.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: scheme }]);
  await tab.setViewport(size);
  const response = await tab.goto(`${base}/`, { waitUntil: 'domcontentloaded' });
  await until(tab, () => document.getElementById('link-text').textContent === 'live');
  return { tab, headers: response.headers() };
}

const until = (tab, condition, ...args) => (
  tab.waitForFunction(condition, { polling: 20 }, ...args));
const text = (tab, selector) => tab.$eval(selector, (element) => element.textContent);

async function ask(tab, message) {
  await tab.focus('#message');
  await tab.keyboard.type(message);
  await tab.keyboard.press('Enter');
}

const ended = (tab) => until(tab, () => document.getElementById('stop').hidden);
const lastAnswer = (tab) => tab.$$eval('.answered .body', (all) => all.at(-1).textContent);
const lastStats = (tab) => tab.$$eval('.stats', (all) => all.at(-1).textContent);

/** What axe finds serious or critical. */
async function grave(tab) {
  await tab.evaluate(axe.source);
  const { violations } = await tab.evaluate(() => globalThis.axe.run(document));
  const found = violations.filter(({ impact }) => impact === 'serious' || impact === 'critical');
  return found.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.target).join(' | ')}`);
}

// The checks.

async function loads() {
  const { tab, headers } = await open();
  await sleep(1000);
  const policy = headers['content-security-policy'] || '';
  expect(/default-src 'none'/.test(policy), `the policy is '${policy}'`);
  expect(!/unsafe|\*/.test(policy), `the policy is '${policy}'`);
  const options = await tab.$$eval('#model option', (all) => all.map((one) => one.value));
  expect(options.includes(model), `the models are ${options}`);
  expect(faults.length === 0, faults.join('; '));
  const html = await tab.content();
  await tab.close();
  return `${Math.round(html.length / 1024)} KiB, models ${options}`;
}

/** An answer with its figures; the bar that shows what is left was there meanwhile. */
async function chats() {
  const { tab } = await open();
  await tab.evaluate(() => {
    globalThis.estimates = new Set();
    setInterval(() => {
      if (document.getElementById('eta').hidden) return;
      const words = document.getElementById('eta-text').textContent;
      if (/\d/.test(words)) globalThis.estimates.add(words);
    }, 10);
  });
  await tab.$eval('#max_tokens', (field) => { field.value = '300'; });
  let estimates = 0;
  // The first answer of a fast model may end before there is an estimate.
  for (let i = 0; i < 8 && estimates === 0; i += 1) {
    if (i > 0) await tab.click('#clear');
    await ask(tab, QUESTION);
    await ended(tab);
    estimates = await tab.evaluate(() => globalThis.estimates.size);
  }
  const [answer, stats] = [await lastAnswer(tab), await lastStats(tab)];
  expect(answer.trim().length > 0, 'the answer is empty');
  expect(/tokens? in .*Time to first token/.test(stats), `the figures are '${stats}'`);
  expect(estimates > 0, 'no estimate was shown');
  const words = await tab.evaluate(() => [...globalThis.estimates].at(-1));
  await tab.click('#clear');
  const left = await tab.$$eval('.turn', (all) => all.length);
  expect(left === 0, `${left} turns are left`);
  await tab.close();
  return `${JSON.stringify(answer.slice(0, 30))}, ${JSON.stringify(words)}`;
}

/** A stopped answer keeps its text, and its request leaves the server. */
async function stops() {
  const { tab } = await open();
  await tab.$eval('#max_tokens', (field) => { field.value = '900'; });
  for (let i = 0; i < 10; i += 1) {
    if (i > 0) await tab.click('#clear');
    await ask(tab, QUESTION);
    await until(tab, () => {
      const [stop, bodies] = [document.getElementById('stop'), document.querySelectorAll('.body')];
      if (bodies[bodies.length - 1].textContent.length > 0) stop.click();
      return stop.hidden;
    });
    const id = await tab.evaluate(() => page.chat.id);
    // The next one, if this one ended before it was stopped.
    if (!/^Stopped/.test(await lastStats(tab))) continue;
    const kept = await lastAnswer(tab);
    await sleep(500);
    expect(kept.length > 0 && await lastAnswer(tab) === kept, 'the answer went on');
    const { status } = await fetch(`${base}/v1/requests/${id}`);
    expect(status === 404, `the stopped request has status ${status}`);
    await tab.close();
    return `${kept.length} characters kept`;
  }
  throw new Error('no answer was long enough to be stopped');
}

/** Frames, what they show, and the time that the page's thread takes for them. */
async function moves() {
  const { tab } = await open();
  await until(tab, (count) => page.frame && page.frame.requests.length >= count, REQUESTS);
  await tab.evaluate(() => {
    globalThis.frames = [];
    const show = page.onFrame.bind(page);
    page.onFrame = (frame) => {
      globalThis.frames.push(frame.requests.map((row) => row.generated));
      show(frame);
    };
    globalThis.before = document.getElementById('queue-canvas').toDataURL();
  });
  const before = await tab.metrics();
  await sleep(5000);
  const after = await tab.metrics();
  const found = await tab.evaluate(() => ({
    frames: globalThis.frames.length,
    different: new Set(globalThis.frames.map(String)).size,
    redrawn: globalThis.before !== document.getElementById('queue-canvas').toDataURL(),
    gauges: [...document.querySelectorAll('.gauge .value')].map((value) => value.textContent),
    rows: document.querySelectorAll('#queue-rows tr').length,
  }));
  const seconds = after.Timestamp - before.Timestamp;
  const rate = found.frames / seconds;
  const busy = Math.round((100 * (after.TaskDuration - before.TaskDuration)) / seconds);
  expect(rate > 5 && rate < 12, `${rate.toFixed(1)} frames a second`);
  expect(found.different > 0.5 * found.frames, `${found.different} of ${found.frames} differ`);
  expect(found.redrawn, 'the bars were not drawn again');
  expect(found.rows === 20, `the table has ${found.rows} rows`);
  const [running, waiting] = found.gauges.map((value) => Number(value.replace(',', '')));
  // One that has ended is not at once replaced.
  const shown = running + waiting;
  expect(running > 0 && shown >= 0.9 * REQUESTS, `the gauges are ${found.gauges}`);
  await tab.close();
  return `${rate.toFixed(1)} frames a second, ${busy} % of the page's thread`;
}

/** The history of the server, points that are added, and the comparison of policies. */
async function tells() {
  const { tab } = await open();
  await tab.evaluate(() => {
    globalThis.events = {};
    const take = page.onEvent.bind(page);
    page.onEvent = (name, value) => {
      globalThis.events[name] = value;
      take(name, value);
    };
    page.connect();
  });
  await until(tab, () => globalThis.events.history && globalThis.events.frame);
  const rows = await tab.evaluate(() => globalThis.events.history.rows.length);
  expect(rows > 0, 'the history is empty');
  const points = await tab.evaluate(() => page.past.points.length);
  await until(tab, (count) => page.past.points.length > count, points);
  await until(tab, () => globalThis.events.whatif
    && !document.getElementById('whatif-table').hidden);
  const names = await tab.$$eval('#whatif-rows th', (all) => all.map((one) => one.textContent));
  const served = await tab.evaluate(() => globalThis.events.whatif.served);
  expect(names.length > 1, `compared are ${names}`);
  expect(names.includes(`${served} served`), `'${served}' is not among ${names}`);
  await tab.close();
  return `${rows} points, ${names.join(', ')}`;
}

async function accessible(scheme) {
  const { tab } = await open({ scheme });
  await tab.click('#settings summary');
  await ask(tab, QUESTION);
  await sleep(1500);
  const found = await grave(tab);
  const shown = await tab.evaluate(() => document.documentElement.dataset.theme);
  expect(shown === scheme, `the theme is ${shown}`);
  await tab.$eval('#stop', (stop) => stop.click());
  await ended(tab);
  found.push(...await grave(tab));
  expect(found.length === 0, [...new Set(found)].join('; '));
  await tab.close();
  return 'nothing serious';
}

async function fits() {
  const { tab } = await open({ size: NARROW });
  await ask(tab, QUESTION);
  await sleep(1000);
  const shown = [];
  for (const section of SECTIONS) {
    const button = `#sections [data-section=${section}]`;
    if (await tab.$eval(button, (one) => one.hidden)) continue;
    await tab.click(button);
    await sleep(300);
    const width = await tab.evaluate(() => document.documentElement.scrollWidth);
    expect(width <= NARROW.width, `${section} is ${width} pixels wide`);
    const found = await grave(tab);
    expect(found.length === 0, `${section}: ${found.join('; ')}`);
    shown.push(section);
  }
  await tab.$eval('#stop', (stop) => stop.click());
  await tab.close();
  return shown.join(', ');
}

/** Starts the program's server, and waits for its address. */
async function serve(port, options = [], env = {}) {
  const server = spawn(program, ['serve', '--port', port, ...options], {
    stdio: ['ignore', 'ignore', 'pipe'],
    env: { ...process.env, ...env },
  });
  let printed = '';
  for await (const piece of server.stderr) {
    printed += piece;
    const found = printed.match(/ on http:\/\/(\S+:(\d+))/);
    if (found) return { server, url: `http://${found[1]}`, port: found[2] };
  }
  throw new Error(`the server ended: ${printed}`);
}

async function end({ server }) {
  server.kill('SIGTERM');
  await once(server, 'exit');
}

/** A page that is open goes on after a restart of the server: live view, chat and its turns. */
async function restarts() {
  let running = await serve('0');
  try {
    const tab = await browser.newPage();
    await tab.goto(running.url, { waitUntil: 'domcontentloaded' });
    const isLive = () => document.getElementById('link-text').textContent === 'live';
    await until(tab, isLive);
    await ask(tab, QUESTION);
    await ended(tab);
    await end(running);
    await until(tab, () => document.getElementById('link-text').textContent === 'reconnecting');
    running = await serve(running.port);
    const begin = Date.now();
    await until(tab, isLive);
    const seconds = (Date.now() - begin) / 1000;
    await ask(tab, QUESTION);
    await ended(tab);
    const turns = await tab.$$eval('.answered', (all) => all.length);
    const stats = await lastStats(tab);
    expect(turns === 2 && /tokens? in /.test(stats), `${turns} answers, the last one: ${stats}`);
    await tab.close();
    return `live again ${seconds.toFixed(1)} s after the server`;
  } finally {
    running.server.kill('SIGTERM');
  }
}

const ADMIN = 'sk-admin';
const USER = 'sk-user';

/** Gives the page a key, and waits until the connection's state says `state`. */
async function useKey(tab, key, state) {
  if (await tab.$eval('#key-form', (form) => form.hidden)) await tab.click('#key-open');
  await tab.focus('#key');
  await tab.keyboard.type(key);
  await tab.keyboard.press('Enter');
  await until(tab, (words) => document.getElementById('link-text').textContent === words, state);
}

const hasPolicy = (tab) => tab.$eval('#policy', (panel) => !panel.hidden);

/** A page that asks for a key, knows an admin's from another, and keeps it in memory alone. */
async function asksForKeys(tab, url) {
  await tab.goto(url, { waitUntil: 'domcontentloaded' });
  await until(tab, () => !document.getElementById('key-form').hidden);
  expect(await text(tab, '#key-note') === 'This server asks for a key.', 'no question');
  await useKey(tab, 'sk-wrong', 'key needed');
  await until(tab, () => /not accept/.test(document.getElementById('key-note').textContent));
  await useKey(tab, USER, 'live');
  expect(!await hasPolicy(tab), 'the policy is offered to a key that may not change it');
  await useKey(tab, ADMIN, 'live');
  await until(tab, () => !document.getElementById('policy').hidden);
  const kept = await tab.evaluate(() => (
    JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie, location.href])
    + document.documentElement.outerHTML));
  expect(!kept.includes('sk-'), 'the key is kept outside the memory');
}

async function setField(tab, selector, value) {
  await tab.$eval(selector, (field) => { field.value = ''; });
  await tab.focus(selector);
  await tab.keyboard.type(value);
}

/** The controls of the policy: what they set, the server has. */
async function changesPolicy(tab, url) {
  await tab.select('#policy-name', 'trail');
  await setField(tab, '#policy-c', '0.5');
  await setField(tab, '#policy-tail', '3');
  await tab.click('#policy-form button[type=submit]');
  await until(tab, () => /0\.5/.test(document.getElementById('served').textContent));
  const headers = { authorization: `Bearer ${ADMIN}` };
  const answer = await fetch(`${url}/v1/trail/policy?model=a`, { headers });
  const { policy } = await answer.json();
  expect(await text(tab, '#policy-status') === `In force: ${policy}.`, 'another policy is shown');
  expect(/^trail/.test(policy) && /0\.5/.test(policy) && /3/.test(policy), policy);
  return policy;
}

/** What the fields say is what the chat asks for, of the model that was chosen. */
async function asksAsSet(tab) {
  const bodies = [];
  tab.on('request', (request) => {
    if (request.url().endsWith('/chat/completions')) bodies.push(JSON.parse(request.postData()));
  });
  await tab.select('#model', 'b');
  await until(tab, () => document.getElementById('link-text').textContent === 'live');
  await tab.click('#settings summary');
  await setField(tab, '#system', 'Answer in verse.');
  await setField(tab, '#temperature', '0.5');
  await setField(tab, '#top_p', '0.9');
  await setField(tab, '#max_tokens', '40');
  await setField(tab, '#seed', '7');
  await ask(tab, QUESTION);
  await ended(tab);
  await ask(tab, 'And then?');
  await ended(tab);
  expect(bodies.length === 2, `${bodies.length} requests`);
  for (const { model: name, messages, ...rest } of bodies) {
    const { temperature, top_p: p, max_tokens: most, seed } = rest;
    expect(`${[name, temperature, p, most, seed]}` === 'b,0.5,0.9,40,7', JSON.stringify(rest));
    expect(messages[0].role === 'system' && messages[0].content === 'Answer in verse.', 'system');
  }
  const roles = bodies[1].messages.map((message) => message.role);
  expect(`${roles}` === 'system,user,assistant,user', `${roles}`);
  const heads = await tab.$$eval('.answered h3', (all) => all.map((one) => one.textContent));
  expect(`${heads}` === 'b,b', `answered by ${heads}`);
}

/** The button puts the answer into the clipboard. */
async function copies(tab, url) {
  const origin = new URL(url).origin;
  await browser.defaultBrowserContext().overridePermissions(origin, ['clipboard-read']);
  await tab.bringToFront();
  const buttons = await tab.$$('.answered .foot button');
  const words = await Promise.all(buttons.map((one) => one.evaluate((node) => node.textContent)));
  await buttons[words.lastIndexOf('Copy')].click();
  await until(tab, () => [...document.querySelectorAll('.foot button')]
    .some((button) => button.textContent === 'Copied'));
  const copied = await tab.evaluate(() => navigator.clipboard.readText());
  expect(copied === await tab.evaluate(() => page.chat.turns.at(-1).text), `copied '${copied}'`);
}

/** Keys, policy, two models, the fields of the chat, copying. */
async function administers() {
  const folder = mkdtempSync(join(tmpdir(), 'trail-page-'));
  const keys = join(folder, 'keys.toml');
  writeFileSync(keys, `[[keys]]\nname = "user"\nkey = "${USER}"\n`);
  const models = ['a', 'b'].map((name) => `--model=${name}=assets/demo`);
  const running = await serve('0', ['--api-keys', keys, ...models], { TRAIL_API_KEY: ADMIN });
  const tab = await browser.newPage();
  try {
    tab.on('pageerror', (error) => faults.push(String(error.stack || error)));
    await tab.setViewport(WIDE);
    await asksForKeys(tab, running.url);
    const policy = await changesPolicy(tab, running.url);
    await asksAsSet(tab);
    await copies(tab, running.url);
    return policy;
  } finally {
    await tab.close();
    await end(running);
    rmSync(folder, { recursive: true });
  }
}

await check('loads', loads);
await check('chat', chats);
await check('stop', stops);
if (program) await check('restart', restarts);
if (program) await check('keys, policy, fields, copy', administers);
await Promise.all(Array.from({ length: ENDED }, async () => {
  await (await complete({ max_tokens: 8 })).text();
}));
const load = new Load(REQUESTS);
await check(`${REQUESTS} requests`, moves);
await check('history, what if', tells);
await check('axe, light', () => accessible('light'));
await check('axe, dark', () => accessible('dark'));
await check('360 pixels', fits);
await check('no errors, no other origin', async () => {
  expect(faults.length === 0, [...new Set(faults)].join('; '));
  return 'none';
});
await load.end();
await browser.close();
process.exit(failed ? 1 : 0);
