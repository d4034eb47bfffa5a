// Runs before anything else, so that it hears of every error; tests read what it writes.
window.addEventListener("error", e => note(e.message));
window.addEventListener("unhandledrejection", e => note(String(e.reason)));
const sayError = console.error;
console.error = (...all) => { note(all.join(" ")); sayError.apply(console, all); };
function note(text) {
  const d = document.documentElement.dataset;
  d.errors = (d.errors ? d.errors + " | " : "") + text;
}
