// Formulas: \( \), \[ \], $ $ and $$ $$. KaTeX is loaded when the first one comes and makes MathML, which the browser sets in
// its own fonts. What it cannot read stays as it was written.

let library = null;

const inlineMath = {
  name: 'math',
  level: 'inline',
  start: (text) => text.search(/\$|\\\(|\\\[/),
  tokenizer(text) {
    // A lone dollar is money: the formula touches both its dollars and no digit follows.
    const found = /^\\\(([^\n]+?)\\\)|^\\\[([\s\S]+?)\\\]|^\$\$([^$]+?)\$\$|^\$((?!\s)(?:\\.|[^$\\\n])+?)(?<!\s)\$(?![\d$])/.exec(text);
    if (!found) return undefined;
    return {type: 'math', raw: found[0], text: found[1] ?? found[2] ?? found[3] ?? found[4], display: (found[2] ?? found[3]) !== undefined};
  },
};

const blockMath = {
  name: 'mathBlock',
  level: 'block',
  start: (text) => text.match(/(?:^|\n)(?:\$\$|\\\[)/)?.index,
  tokenizer(text) {
    const found = /^\$\$([^$]+?)\$\$[ \t]*(?:\n|$)|^\\\[([\s\S]+?)\\\][ \t]*(?:\n|$)/.exec(text);
    if (!found) return undefined;
    return {type: 'mathBlock', raw: found[0], text: found[1] ?? found[2]};
  },
};

export const mathTokens = [inlineMath, blockMath];

async function typeset(e, tex, display) {
  library ??= import('/page/katex.js');
  await library;
  const made = document.createElement('span');
  globalThis.katex.render(tex, made, {output: 'mathml', displayMode: display, throwOnError: true, trust: false, strict: 'ignore', maxExpand: 500, maxSize: 20});
  e.replaceChildren(made);
}

export function mathElement(tex, display, raw) {
  const e = document.createElement(display ? 'div' : 'span');
  e.className = display ? 'math display' : 'math';
  e.textContent = raw.trim();
  typeset(e, tex, display).catch(() => {});
  return e;
}
