// Calls of the server.

const api = {
  /** The key lives here alone. */
  key: '',
  /** Told of a 401. */
  onUnauthorized: () => {},
};

/** A call that the server refused, or that did not reach it (`status` 0). */
class CallError extends Error {
  constructor(message, { status = 0, code = null, retryAfter = null } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
  }
}

/** Seconds of a `Retry-After` header: a number or a date. */
function retrySeconds(header) {
  if (!header) return null;
  const seconds = Number(header);
  if (Number.isFinite(seconds)) return Math.max(0, seconds);
  const date = Date.parse(header);
  return Number.isNaN(date) ? null : Math.max(0, Math.ceil((date - Date.now()) / 1000));
}

async function refusal(response) {
  let error = {};
  try {
    error = (await response.json()).error || {};
  } catch {
    // Not an error object: a proxy's page, perhaps.
  }
  const message = typeof error.message === 'string' ? error.message : '';
  return new CallError(message, {
    status: response.status,
    code: error.code,
    retryAfter: retrySeconds(response.headers.get('retry-after')),
  });
}

function headersOf(body) {
  const headers = {};
  if (api.key) headers.authorization = `Bearer ${api.key}`;
  if (body !== undefined) headers['content-type'] = 'application/json';
  return headers;
}

/**
 * A response of 2xx; anything else throws. `path` is relative to the page. A 401 opens the key
 * field where the call `asksKey`.
 */
async function call(path, { body, signal, asksKey = true } = {}) {
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), {
      method: body === undefined ? 'GET' : 'POST',
      headers: headersOf(body),
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: 'no-store',
      signal,
    });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new CallError('');
  }
  if (response.ok) return response;
  const error = await refusal(response);
  if (error.status === 401 && asksKey) api.onUnauthorized();
  throw error;
}

async function callJson(path, options) {
  const response = await call(path, options);
  try {
    return await response.json();
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new CallError('The server ended its answer early.');
  }
}

function statusInWords(status) {
  const words = {
    0: 'No connection to the server',
    401: api.key ? 'The server did not accept the key' : 'The server asks for a key',
    403: 'The server does not allow this',
    404: 'The server does not have this',
    413: 'The request is too large',
    429: 'The server has no room for another request',
    503: 'The server is not ready',
  };
  return words[status] || (status < 500 ? 'The request is not valid' : 'The server failed');
}

function sentence(text) {
  return /[.!?]$/.test(text) ? text : `${text}.`;
}

/** An error in words: what happened, what the server said, when to try again. */
function inWords(error) {
  if (!(error instanceof CallError)) return sentence(String(error.message || error));
  const parts = [];
  if (error.status || !error.message) parts.push(statusInWords(error.status));
  if (error.message) parts.push(sentence(error.message));
  let text = sentence(parts.join(': '));
  if (error.status) text += ` Status ${error.status}.`;
  if (error.retryAfter !== null) {
    text += ` Try again in ${whole(Math.ceil(error.retryAfter))}${SPACE}s.`;
  }
  return text;
}
