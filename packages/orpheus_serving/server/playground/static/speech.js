// A request out, samples in: the HTTP side of the page.
//
//   POST /v1/audio/speech, response_format pcm -> bytes in portions of any size -> Int16Array pieces

const API = new URL("v1/", document.baseURI);

/** Why there is no speech, or no more of it. `kind`: "key", "refused", "unreachable" or "broken". */
export class SpeechError extends Error {
  constructor(kind, message, { field = null } = {}) {
    super(message);
    this.kind = kind;
    this.field = field; // name of the request's field to change, where the server says so
  }
}

/** GET a JSON document of the API. */
export async function get(path, key) {
  const response = await ask(new URL(path, API), { headers: keyHeader(key) });
  return response.json();
}

/** Yield Int16Array pieces of mono PCM as they arrive. Aborting `signal` closes the connection, which ends the work at the server. */
export async function* speak(request, key, signal) {
  const response = await ask(new URL("audio/speech", API), {
    method: "POST",
    headers: { "Content-Type": "application/json", ...keyHeader(key) },
    body: JSON.stringify({ ...request, response_format: "pcm" }),
    signal,
  });
  const reader = response.body.getReader();
  const whole = new WholeSamples();
  for (;;) {
    const { done, value } = await reader.read().catch((error) => {
      throw signal.aborted ? error : new SpeechError("broken", "The connection broke off.");
    });
    if (done) break;
    const samples = whole.push(value);
    if (samples.length) yield samples;
  }
  if (whole.rest.length) throw new SpeechError("broken", "The connection broke off in the middle of a sample.");
}

/** The network cuts where it likes: a byte that is half a sample waits for its other half. */
export class WholeSamples {
  rest = new Uint8Array(0);

  push(bytes) {
    const joined = new Uint8Array(this.rest.length + bytes.length);
    joined.set(this.rest);
    joined.set(bytes, this.rest.length);
    const even = joined.length & ~1;
    this.rest = joined.slice(even);
    return new Int16Array(joined.buffer, 0, even / 2); // little-endian, as every browser's machine is
  }
}

function keyHeader(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function ask(url, options) {
  let response;
  try {
    response = await fetch(url, options);
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new SpeechError("unreachable", "The server does not answer. Is it still running?");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

/** The server's reason in its own words: `{error: {message, param}}`, or `{detail}`. */
async function refusal(response) {
  const body = await response.json().catch(() => ({}));
  const said = body.error?.message ?? (typeof body.detail === "string" ? body.detail : `The server answered ${response.status}.`);
  const wait = Number(response.headers.get("Retry-After"));
  const message = wait ? `${said.replace(/\.?$/, ".")} Try again in ${wait} s.` : said;
  return new SpeechError(response.status === 401 ? "key" : "refused", message, { field: body.error?.param ?? null });
}
