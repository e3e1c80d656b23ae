// Model text to DOM nodes. marked cuts the text into tokens; each known token becomes an element made here, its text a
// text node. HTML in the text stays text, images are links to them (nothing is loaded), and a link keeps its address
// only if it is http, https or mailto. No string from the text is ever parsed as HTML.
import '/page/marked.js';
import {highlight} from '/page/code.js';
import {mathTokens, mathElement} from '/page/math.js';

const {marked} = globalThis;
marked.use({gfm: true, breaks: false, mangle: false, headerIds: false, extensions: mathTokens});

export function element(name, attributes = {}, ...children) {
  const e = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
  e.append(...children);
  return e;
}

const kEntities = {amp: '&', lt: '<', gt: '>', quot: '"', apos: "'", nbsp: '\u00a0', copy: '©', hellip: '…', mdash: '—', ndash: '–', times: '×'};

// marked escapes the text of its tokens for HTML; a text node wants it plain.
function plain(text) {
  return text.replace(/&(?:#x([0-9a-f]{1,6})|#(\d{1,7})|(\w{2,8}));/gi, (all, hex, decimal, name) => {
    if (name) return Object.hasOwn(kEntities, name) ? kEntities[name] : all;
    const code = hex ? parseInt(hex, 16) : Number(decimal);
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : '\ufffd';
  });
}

// The address as it may stand in a link, or null.
export function safeAddress(href) {
  let url;
  try {
    url = new URL(plain(href ?? ''));
  } catch {
    return null;  // relative ones too: they would mean places of this server
  }
  return ['http:', 'https:', 'mailto:'].includes(url.protocol) ? url.href : null;
}

function link(href, children, title) {
  const address = safeAddress(href);
  if (!address) return element('span', {}, ...children);
  const a = element('a', {href: address, target: '_blank', rel: 'noopener noreferrer nofollow'}, ...children);
  a.title = title ? `${plain(title)} (${address})` : address;
  return a;
}

const kInline = {
  text: (t) => (t.tokens ? inline(t.tokens) : [plain(t.text)]),
  escape: (t) => [plain(t.text)],
  strong: (t) => [element('strong', {}, ...inline(t.tokens))],
  em: (t) => [element('em', {}, ...inline(t.tokens))],
  del: (t) => [element('del', {}, ...inline(t.tokens))],
  codespan: (t) => [element('code', {}, plain(t.text))],
  br: () => [element('br')],
  link: (t) => [link(t.href, inline(t.tokens), t.title)],
  image: (t) => [link(t.href, [`image: ${plain(t.text) || plain(t.href)}`], t.title)],
  math: (t) => [mathElement(t.text, t.display, t.raw)],
};

function inline(tokens) {
  return tokens.flatMap((t) => (kInline[t.type] ? kInline[t.type](t) : [t.raw]));
}

function codeBlock(t) {
  const language = (t.lang ?? '').match(/^\S*/)[0];
  const code = element('code', {}, t.text);
  const copy = element('button', {type: 'button', class: 'copy-code', 'aria-label': 'Copy this code'}, 'Copy');
  highlight(code, language);
  return element('div', {class: 'code'}, element('div', {class: 'code-bar'}, element('span', {}, plain(language) || 'code'), copy),
    element('pre', {tabindex: '0'}, code));
}

function listItem(t) {
  const item = element('li');
  if (t.task) {
    const box = element('input', {type: 'checkbox', disabled: '', 'aria-label': t.checked ? 'done' : 'open'});
    box.checked = t.checked;
    item.append(box, ' ');
  }
  item.append(...t.tokens.flatMap((inner) => (inner.type === 'text' ? kInline.text(inner) : block(inner))));
  return item;
}

function list(t) {
  const e = element(t.ordered ? 'ol' : 'ul', {}, ...t.items.map(listItem));
  if (t.ordered && Number.isInteger(t.start) && t.start !== 1) e.start = t.start;
  return e;
}

function table(t) {
  const cell = (name, column, c) => {
    const e = element(name, {}, ...inline(c.tokens));
    if (['left', 'center', 'right'].includes(t.align[column])) e.className = `align-${t.align[column]}`;
    return e;
  };
  const head = element('tr', {}, ...t.header.map((c, i) => cell('th', i, c)));
  const rows = t.rows.map((r) => element('tr', {}, ...r.map((c, i) => cell('td', i, c))));
  return element('div', {class: 'table', tabindex: '0'}, element('table', {}, element('thead', {}, head), element('tbody', {}, ...rows)));
}

const kBlocks = {
  space: () => [],
  def: () => [],
  hr: () => [element('hr')],
  // The page has its own h1 and h2: those of a message begin below them.
  heading: (t) => [element(`h${Math.min(t.depth + 2, 6)}`, {}, ...inline(t.tokens))],
  paragraph: (t) => [element('p', {}, ...inline(t.tokens))],
  text: (t) => [element('p', {}, ...kInline.text(t))],
  html: (t) => [element('p', {class: 'verbatim'}, t.raw.trim())],
  code: (t) => [codeBlock(t)],
  blockquote: (t) => [element('blockquote', {}, ...t.tokens.flatMap(block))],
  list: (t) => [list(t)],
  table: (t) => [table(t)],
  mathBlock: (t) => [mathElement(t.text, true, t.raw)],
};

function block(token) {
  return kBlocks[token.type] ? kBlocks[token.type](token) : [element('p', {}, token.raw)];
}

// Makes `into` show the text. Called again with a longer text it keeps the blocks that did not change, so a selection in
// them, and a stream costs what it changes.
export function render(into, text) {
  let tokens;
  try {
    tokens = marked.lexer(text);
  } catch {
    tokens = [{type: 'html', raw: text}];
  }
  const before = into.blocks ?? [];
  let same = 0;
  while (same < before.length && same < tokens.length && before[same].raw === tokens[same].raw && before[same].type === tokens[same].type) ++same;
  for (const old of before.slice(same)) old.nodes.forEach((n) => n.remove());
  const blocks = before.slice(0, same);
  for (const token of tokens.slice(same)) {
    const nodes = block(token);
    into.append(...nodes);
    blocks.push({raw: token.raw, type: token.type, nodes});
  }
  into.blocks = blocks;
}
