// Settings and the conversation, kept in localStorage; the API key in sessionStorage alone, so that it goes with the tab. What
// lies there may be of another version or damaged: what does not fit is dropped. Where the browser forbids storage, the page
// works and forgets.

const kSettings = 'winnow.settings';
const kKey = 'winnow.key';
const kMessages = 'winnow.messages';

export const defaults = Object.freeze({
  system: '', temperature: '', top_p: '', max_tokens: '', thinking: '', theme: '', key: '', tools: '',
});

function load(key) {
  try {
    return JSON.parse(localStorage.getItem(key));
  } catch {
    return null;
  }
}

// False if it could not be kept: no storage, or no room.
function save(key, value) {
  try {
    localStorage.setItem(key, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

export function loadSettings() {
  const found = load(kSettings);
  const settings = {...defaults};
  for (const name of Object.keys(defaults))
    if (typeof found?.[name] === 'string') settings[name] = found[name];
  try {
    settings.key = sessionStorage.getItem(kKey) ?? '';
  } catch {
    settings.key = '';
  }
  return settings;
}

export function saveSettings(settings) {
  const {key, ...others} = settings;
  try {
    sessionStorage.setItem(kKey, key);
  } catch {
    // it is typed again
  }
  return save(kSettings, others);
}

const text = (value) => (typeof value === 'string' ? value : '');

function call(found) {
  return {id: text(found?.id), name: text(found?.name), arguments: text(found?.arguments)};
}

function message(found) {
  if (found?.role === 'user') return {role: 'user', content: text(found.content)};
  if (found?.role === 'tool') return {role: 'tool', id: text(found.id), name: text(found.name), content: text(found.content)};
  if (found?.role !== 'assistant') return null;
  return {
    role: 'assistant', reasoning: text(found.reasoning), content: text(found.content), error: text(found.error), finish: text(found.finish),
    calls: Array.isArray(found.calls) ? found.calls.map(call) : [], thoughtFor: Number(found.thoughtFor) || 0,
    figures: text(found.figures),
  };
}

export function loadMessages() {
  const found = load(kMessages);
  return Array.isArray(found) ? found.map(message).filter(Boolean) : [];
}

export const saveMessages = (messages) => save(kMessages, messages);

// The conversation as the API takes it. An answer of which nothing came is left out.
export function forApi(messages) {
  const out = [];
  for (const m of messages) {
    if (m.role === 'user') out.push({role: 'user', content: m.content});
    if (m.role === 'tool') out.push({role: 'tool', tool_call_id: m.id, content: m.content});
    if (m.role !== 'assistant' || !(m.content || m.reasoning || m.calls.length)) continue;
    const answer = {role: 'assistant', content: m.content};
    if (m.reasoning) answer.reasoning_content = m.reasoning;
    if (m.calls.length)
      answer.tool_calls = m.calls.map((c) => ({id: c.id, type: 'function', function: {name: c.name, arguments: c.arguments || '{}'}}));
    out.push(answer);
  }
  return out;
}
