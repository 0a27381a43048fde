// Elements of the document.

function byId(id) {
  return document.getElementById(id);
}

/** A new element: `properties` are set on it, `children` are elements or text. */
function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

/** Sets text only where it changes, so that nothing is laid out in vain. */
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function setAttribute(element, name, value) {
  if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

function setHidden(element, hidden) {
  if (element.hidden !== hidden) element.hidden = hidden;
}

/** `share` of the parent's size, as a style that a content security policy allows. */
function setShare(element, property, share) {
  const value = `${(100 * Math.min(1, Math.max(0, share))).toFixed(2)}%`;
  if (element.style[property] !== value) element.style[property] = value;
}

const reducedMotion = matchMedia('(prefers-reduced-motion: reduce)');

/** Resolves after `ms`, or at once when `signal` aborts. */
function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener('abort', () => {
      clearTimeout(timer);
      resolve();
    }, { once: true });
  });
}

/** Calls `action` at most once in `ms`, the last time after the last call. */
function throttled(ms, action) {
  let last = -Infinity;
  let timer = 0;
  const run = () => {
    timer = 0;
    last = performance.now();
    action();
  };
  return () => {
    if (timer) return;
    const wait = last + ms - performance.now();
    if (wait <= 0) run();
    else timer = setTimeout(run, wait);
  };
}

/** Gives a canvas the pixels of its box; returns its context in CSS pixels, and its size. */
function fitCanvas(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}
