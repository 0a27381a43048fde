// A live request: its states, and what is known of it in words.

const STATES = {
  running: { letter: 'R', title: 'Running' },
  prefill: { letter: 'F', title: 'Prefill' },
  paused: { letter: 'P', title: 'Paused' },
  swapped: { letter: 'S', title: 'Swapped' },
  waiting: { letter: 'W', title: 'Waiting' },
};
const STATE_NAMES = Object.keys(STATES);

/** "in 2.3 s (0.8 to 6.1 s)" of low, median and high milliseconds. */
function within(times) {
  return `in ${duration(times[1] / 1000)} (${durationRange(times[0], times[2])})`;
}

/** Output tokens at the far end of the interval, or of the prediction. */
function reachOf(request) {
  if (request.interval) return request.generated + request.interval[1];
  return request.generated + (request.remaining || 0);
}

function nameOf(request, own) {
  const name = request.id || `Request ${request.key} of another key`;
  return own ? `${name} (sent from this page)` : name;
}

function placeOf(request) {
  return request.place > 0 ? `place ${whole(request.place)} in the queue` : 'in the batch';
}

function leftOf(request) {
  if (!isNumber(request.remaining)) return 'no prediction of the rest';
  const about = `about ${whole(request.remaining)} left`;
  return request.interval ? `${about} (${tokenRange(request.interval)})` : about;
}

function countsOf(request) {
  const { computed, prompt, generated, max } = request;
  const read = computed < prompt ? whole(computed) : 'all';
  return [
    `Prompt: ${read} of ${whole(prompt)} tokens computed.`,
    `Output: ${whole(generated)} of at most ${whole(max)} tokens, ${leftOf(request)}.`,
  ];
}

function timesOf(request) {
  const times = [];
  if (request.first_ms) times.push(`First token ${within(request.first_ms)}.`);
  if (request.last_ms) times.push(`Ends ${within(request.last_ms)}.`);
  if (request.preemptions > 0) times.push(`${counted(request.preemptions, 'preemption')}.`);
  return times;
}

/** All that is known of a request, as sentences. */
function describe(request, own) {
  const head = `${nameOf(request, own)}: ${STATES[request.state].title.toLowerCase()}, `
    + `${placeOf(request)}.`;
  const reason = request.reason ? [sentence(request.reason)] : [];
  return [head, ...reason, ...countsOf(request), ...timesOf(request)];
}
