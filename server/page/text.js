'use strict';

// Numbers in words. The space before a unit does not break.

const SPACE = '\u00a0';
const WHOLE = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 });
const TENTHS = new Intl.NumberFormat('en-US',
  { minimumFractionDigits: 1, maximumFractionDigits: 1 });

function isNumber(value) {
  return typeof value === 'number' && Number.isFinite(value);
}

function whole(value) {
  return WHOLE.format(value);
}

function tenths(value) {
  return TENTHS.format(value);
}

/** Tenths of small numbers, whole large ones. */
function measured(value) {
  return Math.abs(value) < 99.95 ? tenths(value) : whole(value);
}

function percent(share) {
  return `${whole(share * 100)}${SPACE}%`;
}

function counted(count, noun) {
  return `${whole(count)}${SPACE}${noun}${count === 1 ? '' : 's'}`;
}

/** A duration without its unit, as precise as its `scale`, in seconds. */
function secondsAlike(s, scale) {
  return scale < 9.95 ? tenths(s) : whole(s);
}

function duration(s) {
  if (s < 99.5) return `${secondsAlike(s, s)}${SPACE}s`;
  const minutes = Math.floor(Math.round(s) / 60);
  const rest = Math.round(s) - 60 * minutes;
  return `${minutes}${SPACE}min${rest > 0 ? ` ${rest}${SPACE}s` : ''}`;
}

/** "0.8 to 6.1 s" of two times in milliseconds. */
function durationRange(lowMs, highMs) {
  const [low, high] = [lowMs / 1000, highMs / 1000];
  if (high >= 99.5) return `${duration(low)} to ${duration(high)}`;
  return `${secondsAlike(low, high)} to ${secondsAlike(high, high)}${SPACE}s`;
}

function tokenRange(interval) {
  return `${whole(interval[0])} to ${whole(interval[1])}`;
}

const COARSE = [1, 2, 5, 10];
const FINE = [1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10];

/** Least of `factors` times a power of ten that is not less than `value`. */
function roundUp(value, factors) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * factors.find((factor) => factor * power >= value * 0.999999);
}
