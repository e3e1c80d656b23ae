// The conversation as DOM. It shows messages and asks `act` (main.js) for what its buttons mean; it holds no state of its
// own but what the reader unfolded.
import {element, render} from '/page/markdown.js';

const kEveryMs = 60;  // between two renderings of a streaming answer

const button = (label, action) => element('button', {type: 'button', 'data-action': action}, label);

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;  // an answer that was stopped within it
  }
}

function callCard(call) {
  return element('div', {class: 'call'}, element('div', {class: 'call-name'}, 'Calls ', element('code', {}, call.name)),
    element('pre', {tabindex: '0'}, element('code', {}, pretty(call.arguments))));
}

function userMessage(m) {
  return element('article', {class: 'user', 'aria-label': 'You'}, element('div', {class: 'text verbatim'}, m.content));
}

function toolMessage(m) {
  const name = m.name ? `Result of ${m.name}` : 'Result';
  return element('article', {class: 'tool', 'aria-label': name}, element('div', {class: 'quiet'}, name), element('pre', {tabindex: '0'}, m.content));
}

// One answer; update() brings it to the state of its message.
class AnswerView {
  constructor() {
    this.summary = element('summary');
    this.reasoning = element('div', {class: 'reasoning-text'});
    this.fold = element('details', {class: 'reasoning', hidden: ''}, this.summary, this.reasoning);
    this.content = element('div', {class: 'text'});
    this.calls = element('div', {class: 'calls'});
    this.problem = element('p', {class: 'problem', hidden: ''});
    this.foot = element('footer');
    this.root = element('article', {class: 'assistant', 'aria-label': 'Answer'}, this.fold, this.content, this.calls, this.problem, this.foot);
    this.fold.addEventListener('toggle', () => this.update(this.message, this.running, this.last));
  }

  update(message, running, last) {
    Object.assign(this, {message, running, last});
    const waits = running && !message.reasoning && !message.content && !message.calls.length;
    this.root.classList.toggle('waits', waits);
    this.fold.hidden = !message.reasoning;
    const thinks = running && !message.content && !message.calls.length;
    const label = thinks ? 'Thinking…' : message.thoughtFor ? `Thought for ${message.thoughtFor.toFixed(1)} s` : 'Thought';
    if (this.summary.textContent !== label) this.summary.textContent = label;
    if (this.fold.open) render(this.reasoning, message.reasoning);
    render(this.content, message.content);
    const calls = JSON.stringify(message.calls);
    if (this.shownCalls !== calls) this.calls.replaceChildren(...message.calls.map(callCard));
    this.shownCalls = calls;
    const ends = {length: 'Cut: the limit of tokens is reached.', stopped: 'Stopped.'};
    this.problem.textContent = message.error || ends[message.finish] || '';
    this.problem.hidden = running || !this.problem.textContent;
    this.problem.classList.toggle('quiet', !message.error);
    this.foot.replaceChildren(...(running ? [] : this.buttons()));
  }

  buttons() {
    const all = [];
    if (this.message.content) all.push(button('Copy', 'copy'));
    if (this.last) all.push(button(this.message.error ? 'Try again' : 'Regenerate', 'regenerate'));
    if (this.message.figures) all.push(element('span', {class: 'figures quiet'}, this.message.figures));
    return all;
  }
}

// Fields for what the called tools answer, when the last answer calls some.
function resultForm(message) {
  const fields = message.calls.map((call, i) => {
    const field = element('textarea', {id: `result-${i}`, rows: '2', 'data-call': call.id, 'data-name': call.name, spellcheck: 'false'});
    return element('div', {}, element('label', {for: `result-${i}`}, `Result of ${call.name}`), field);
  });
  return element('form', {class: 'results'}, ...fields, element('button', {type: 'submit', class: 'strong'}, 'Send results'));
}

export async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = element('textarea', {class: 'hidden', 'aria-hidden': 'true'});  // over plain HTTP to another machine there is no clipboard object
  field.value = text;
  document.body.append(field);
  field.select();
  const done = document.execCommand('copy');
  field.remove();
  if (!done) throw new Error('refused');
  return undefined;
}

export class View {
  constructor(messages, scroller, empty) {
    Object.assign(this, {messages, scroller, empty});
    this.answers = new Map();  // message -> AnswerView
    this.later = 0;
  }

  // The whole conversation, anew.
  show(list, running) {
    this.answers.clear();
    this.empty.hidden = list.length > 0;
    const last = list[list.length - 1];
    this.messages.replaceChildren(...list.map((m) => {
      if (m.role === 'user') return userMessage(m);
      if (m.role === 'tool') return toolMessage(m);
      const answer = new AnswerView();
      answer.root.message = m;
      answer.update(m, running && m === last, m === last);
      this.answers.set(m, answer);
      return answer.root;
    }));
    if (!running && last?.role === 'assistant' && last.calls.length) this.messages.append(resultForm(last));
    this.messages.setAttribute('aria-busy', String(running));
    this.toEnd();
  }

  // What a streaming answer has by now, soon.
  update(message) {
    if (this.later) return;
    this.later = setTimeout(() => {
      this.later = 0;
      const follow = this.atEnd();
      this.answers.get(message)?.update(message, true, true);
      if (follow) this.toEnd();
    }, kEveryMs);
  }

  // The answer is over: one last rendering, then the buttons.
  finish(list) {
    clearTimeout(this.later);
    this.later = 0;
    const follow = this.atEnd();
    const last = list[list.length - 1];
    this.answers.get(last)?.update(last, false, true);
    if (last?.role === 'assistant' && last.calls.length) this.messages.append(resultForm(last));
    this.messages.setAttribute('aria-busy', 'false');
    if (follow) this.toEnd();
  }

  atEnd() {
    const s = this.scroller;
    return s.scrollHeight - s.scrollTop - s.clientHeight < 60;
  }

  toEnd() {
    this.scroller.scrollTop = this.scroller.scrollHeight;
  }
}
