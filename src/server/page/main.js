// The page's one state: settings, messages and the answer that is being written. Everything that changes it is here.
import {ApiError, chat, modelName} from '/page/api.js';
import {applyTheme, settingsDialog} from '/page/settings.js';
import {forApi, loadMessages, loadSettings, saveMessages, saveSettings} from '/page/store.js';
import {View, copy} from '/page/view.js';

const at = (id) => document.getElementById(id);
const prompt = at('prompt');
const send = at('send');
const view = new View(at('messages'), at('scroller'), at('empty'));

const settings = loadSettings();
let messages = loadMessages();
let running = null;  // AbortController of the answer that is being written

const say = (text) => { at('status').textContent = text; };

function complain(text) {
  at('problem').textContent = text;
  at('problem').hidden = !text;
}

function keep() {
  if (!saveMessages(messages)) complain('The conversation could not be kept in this browser: it is gone when the page is closed.');
}

// --- an answer -------------------------------------------------------------------------------------------------------

function figures(usage, began, first, ended) {
  const parts = [];
  const tokens = usage?.completion_tokens ?? 0;
  const seconds = usage?.winnow?.decode_s || (first ? (ended - first) / 1000 : 0);
  if (tokens) parts.push(`${tokens} tokens`);
  if (tokens > 1 && seconds > 0) parts.push(`${((tokens - 1) / seconds).toFixed(1)} tokens/s`);
  if (first) parts.push(`first after ${((first - began) / 1000).toFixed(2)} s`);
  const cached = usage?.prompt_tokens_details?.cached_tokens;
  if (cached !== undefined) parts.push(`${cached} of ${usage.prompt_tokens} prompt tokens cached`);
  return parts.join(' · ');
}

// Tool calls come in parts: the first names it, the rest append to its arguments.
function addCalls(calls, parts) {
  for (const part of parts) {
    const i = part.index ?? calls.length;
    calls[i] ??= {id: '', name: '', arguments: ''};
    if (part.id) calls[i].id = part.id;
    calls[i].name += part.function?.name ?? '';
    calls[i].arguments += part.function?.arguments ?? '';
  }
}

async function fill(message, context, controller) {
  const began = performance.now();
  let first = 0;
  let usage = null;
  for await (const change of chat(context, settings, controller.signal)) {
    if (!first && (change.reasoning || change.content || change.calls.length)) first = performance.now();
    if (message.reasoning && !message.thoughtFor && (change.content || change.calls.length)) message.thoughtFor = (performance.now() - first) / 1000;
    message.reasoning += change.reasoning;
    message.content += change.content;
    addCalls(message.calls, change.calls);
    message.finish = change.finish ?? message.finish;
    usage = change.usage ?? usage;
    view.update(message);
  }
  message.figures = figures(usage, began, first, performance.now());
}

async function answer() {
  const context = forApi(messages);
  const message = {role: 'assistant', reasoning: '', content: '', error: '', finish: '', calls: [], thoughtFor: 0, figures: ''};
  const controller = new AbortController();
  messages.push(message);
  running = controller;
  showRunning();
  complain('');
  view.show(messages, true);
  say('The answer is being written.');
  try {
    await fill(message, context, controller);
    say(`The answer is complete. ${message.content.slice(0, 1000)}`);
  } catch (e) {
    if (e.name === 'AbortError') {
      message.finish = 'stopped';
      say('Stopped.');
    } else {
      message.error = e instanceof ApiError ? e.message : `The page failed: ${e.message}`;
      say(message.error);
    }
  }
  message.calls = message.calls.filter(Boolean);
  if (running !== controller) return;  // the conversation it belonged to was left
  running = null;
  showRunning();
  view.finish(messages);
  keep();
}

function stop() {
  running?.abort();
}

function regenerate() {
  if (running) return;
  while (messages.at(-1)?.role === 'assistant') messages.pop();
  if (messages.length) answer();
}

// --- what the reader does --------------------------------------------------------------------------------------------

function showRunning() {
  send.textContent = running ? 'Stop' : 'Send';
  send.classList.toggle('stops', Boolean(running));
}

function grow() {
  prompt.rows = Math.min(8, prompt.value.split('\n').length);
}

function submit() {
  const text = prompt.value.trim();
  if (!text || running) return;
  messages.push({role: 'user', content: text});
  prompt.value = '';
  grow();
  keep();
  answer();
}

at('composer').addEventListener('submit', (e) => {
  e.preventDefault();
  if (running) stop();
  else submit();
  prompt.focus();
});
prompt.addEventListener('input', grow);
prompt.addEventListener('keydown', (e) => {
  if (e.key !== 'Enter' || e.shiftKey || e.isComposing) return;
  e.preventDefault();
  submit();
});
document.addEventListener('keydown', (e) => {
  if (e.key === 'Escape' && !at('settings').open) stop();
});
at('attach').addEventListener('click', () => say(at('attach-why').textContent));

at('new-chat').addEventListener('click', () => {
  stop();
  running = null;
  messages = [];
  showRunning();
  complain('');
  keep();
  view.show(messages, false);
  say('New chat.');
  prompt.focus();
});

async function copied(target, text) {
  const label = target.textContent;
  try {
    await copy(text);
    target.textContent = 'Copied';
    say('Copied.');
  } catch {
    target.textContent = 'Not allowed';
    say('The browser does not let this page copy.');
  }
  setTimeout(() => { target.textContent = label; }, 1500);
}

at('messages').addEventListener('click', (e) => {
  const target = e.target.closest('button');
  if (target?.classList.contains('copy-code')) copied(target, target.closest('.code').querySelector('code').textContent);
  if (target?.dataset.action === 'copy') copied(target, target.closest('article').message.content);
  if (target?.dataset.action === 'regenerate') regenerate();
});

at('messages').addEventListener('submit', (e) => {
  e.preventDefault();
  if (running) return;
  for (const field of e.target.querySelectorAll('textarea'))
    messages.push({role: 'tool', id: field.dataset.call, name: field.dataset.name, content: field.value});
  keep();
  answer();
});

window.addEventListener('pagehide', () => {
  if (running) messages.at(-1).finish = 'stopped';  // its connection ends with the page
  saveMessages(messages);
});

// --- start -----------------------------------------------------------------------------------------------------------

async function showModel() {
  try {
    at('model').textContent = await modelName(settings.key);
    complain('');
  } catch (e) {
    complain(e.message);
  }
}

settingsDialog(at('settings'), at('open-settings'), settings, saveSettings);
at('settings').addEventListener('close', () => {
  if (!at('model').textContent) showModel();
});
applyTheme(settings.theme);
view.show(messages, false);
showModel();
prompt.focus({preventScroll: true});
