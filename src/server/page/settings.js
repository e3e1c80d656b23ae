// The settings dialog: its fields are the settings by name, each kept as it was typed.
import {defaults} from '/page/store.js';

// Why the text of the tools field cannot be sent; empty if it can.
export function toolsProblem(text) {
  if (!text.trim()) return '';
  try {
    return Array.isArray(JSON.parse(text)) ? '' : 'Tools must be a JSON array.';
  } catch (e) {
    return `Tools are no JSON: ${e.message}`;
  }
}

export function applyTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

// Calls changed(settings) at each change that can be used.
export function settingsDialog(dialog, opener, settings, changed) {
  const form = dialog.querySelector('form');
  const problem = dialog.querySelector('#tools-problem');
  const fields = Object.keys(defaults).map((name) => form.elements.namedItem(name));

  const fill = (from) => fields.forEach((f) => { f.value = from[f.name]; });
  const read = () => {
    problem.textContent = toolsProblem(form.elements.namedItem('tools').value);
    problem.hidden = !problem.textContent;
    for (const f of fields) if (f.checkValidity() && !(f.name === 'tools' && problem.textContent)) settings[f.name] = f.value;
    applyTheme(settings.theme);
    changed(settings);
  };

  opener.addEventListener('click', () => {
    fill(settings);
    problem.hidden = true;
    dialog.showModal();
  });
  form.addEventListener('input', read);
  form.addEventListener('submit', (e) => {
    if (!problem.hidden) e.preventDefault();
  });
  dialog.querySelector('#reset-settings').addEventListener('click', () => {
    fill(defaults);
    read();
  });
  dialog.addEventListener('click', (e) => {
    if (e.target === dialog) dialog.close();  // the backdrop
  });
}
