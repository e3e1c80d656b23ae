// The server's API as this page uses it: the model's name, and a chat completion as a stream of changes.

// An answer that is an error, in words for the reader.
export class ApiError extends Error {}

function headers(key) {
  const all = {'Content-Type': 'application/json'};
  if (key) all.Authorization = `Bearer ${key}`;
  return all;
}

function words(status, body, retryAfter) {
  const message = body?.error?.message;
  const said = message ? `: ${message}` : '';
  if (status === 401) return `The server wants an API key. Type it under Settings${said}`;
  if (status === 403) return `This API key may not do that${said}`;
  if (status === 413) return `The conversation is too long for the server${said}`;
  if (status === 429) return `The server is busy${retryAfter ? `; try again in ${retryAfter} s` : '; try again soon'}${said}`;
  if (status === 503) return `The server cannot answer now${said}`;
  if (status === 504) return `The answer took too long${said}`;
  if (status >= 500) return `The server failed (${status})${said}`;
  return `The server refused the request (${status})${said}`;
}

async function reach(path, options) {
  let response;
  try {
    response = await fetch(path, {credentials: 'omit', ...options});
  } catch (e) {
    if (e.name === 'AbortError') throw e;
    throw new ApiError('The server cannot be reached. Is it still running?');
  }
  if (response.ok) return response;
  let body = null;
  try {
    body = await response.json();
  } catch {
    // a proxy's page, or nothing: the status says enough
  }
  throw new ApiError(words(response.status, body, response.headers.get('Retry-After')));
}

export async function modelName(key) {
  const list = await (await reach('/v1/models', {headers: headers(key)})).json();
  return list.data?.[0]?.id ?? '';
}

// The data of each server-sent event (WHATWG HTML, "Server-sent events"): lines end with LF, CRLF or CR, comments and
// other fields are skipped, several data lines are one value.
export async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  let data = [];
  try {
    for (;;) {
      const {value, done} = await reader.read();
      rest += value ?? '';
      const lines = rest.split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === '') {
          if (data.length) yield data.join('\n');
          data = [];
        } else if (line.startsWith('data:')) {
          data.push(line.slice(line[5] === ' ' ? 6 : 5));
        }
      }
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});  // leaving early closes the connection, which cancels the request
  }
}

export function requestBody(messages, settings) {
  const body = {messages, stream: true, stream_options: {include_usage: true}};
  if (settings.system.trim()) body.messages = [{role: 'system', content: settings.system}, ...messages];
  for (const name of ['temperature', 'top_p', 'max_tokens'])
    if (settings[name] !== '' && Number.isFinite(Number(settings[name]))) body[name] = Number(settings[name]);
  if (settings.thinking) body.reasoning_effort = settings.thinking;
  if (settings.tools.trim()) body.tools = JSON.parse(settings.tools);
  return body;
}

// Yields {reasoning, content, calls, finish, usage}, what each event brings.
export async function* chat(messages, settings, signal) {
  const response = await reach('/v1/chat/completions', {
    method: 'POST', headers: headers(settings.key), body: JSON.stringify(requestBody(messages, settings)), signal,
  });
  let finished = false;
  try {
    for await (const data of events(response.body)) {
      if (data === '[DONE]') return;
      const event = JSON.parse(data);
      if (event.error) throw new ApiError(words(event.error.code === 'timeout' ? 504 : 500, event));
      const choice = event.choices?.[0];
      const delta = choice?.delta ?? {};
      finished ||= Boolean(choice?.finish_reason);
      yield {
        reasoning: delta.reasoning_content ?? '', content: delta.content ?? '', calls: delta.tool_calls ?? [],
        finish: choice?.finish_reason ?? null, usage: event.usage ?? null,
      };
    }
  } catch (e) {
    if (e.name === 'AbortError' || e instanceof ApiError) throw e;
    throw new ApiError('The connection broke before the answer was whole.');
  }
  if (!finished) throw new ApiError('The connection ended before the answer was whole.');
}
