// Colours code with highlight.js, which is loaded when the first block with a known language comes. It returns HTML:
// DOMPurify makes a fragment of it that has nothing but spans with classes.
import DOMPurify from '/page/purify.js';

const kLongest = 50000;  // characters; longer code stays plain
let library = null;

async function colour(code, language) {
  library ??= import('/page/highlight.js');
  await library;
  const {hljs} = globalThis;
  if (!hljs.getLanguage(language)) return;
  const text = code.textContent;
  const html = hljs.highlight(language, text, true).value;
  const safe = DOMPurify.sanitize(html, {ALLOWED_TAGS: ['span'], ALLOWED_ATTR: ['class'], ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false, RETURN_DOM_FRAGMENT: true});
  if (safe.textContent === text) code.replaceChildren(safe);
}

export function highlight(code, language) {
  if (!/^[\w+#.-]{1,30}$/.test(language) || code.textContent.length > kLongest) return;
  colour(code, language).catch(() => {});  // plain code is well enough
}
