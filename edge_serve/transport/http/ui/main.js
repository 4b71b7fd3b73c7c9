/** The status page: asks for the status document once a second while it is in front, and draws it. */

import { $, make, say } from "./draw.js";
import { History } from "./history.js";
import { Settings, mayManage, safeModeButton } from "./manage.js";
import { ModelPage } from "./model.js";
import { drawOverview, watchChoice } from "./overview.js";
import { Refused, ask, hasToken, isToken, setToken } from "./server.js";
import { clock, span } from "./text.js";

const PERIOD = 1000,
  PATIENCE = 6000;
const STATES = {
  ready: ["Ready", "good"],
  starting: ["Starting", "busy"],
  "not ready": ["Not ready", "bad"],
  "safe mode": ["Safe mode", "bad"],
  stopping: ["Stopping", "busy"],
};
const past = new History(),
  settings = new Settings($("settings"));
let lastAnswer = null,
  timer = null,
  page = null;

function banner(text, className, extra) {
  const node = $("banner");
  node.hidden = !text;
  if (
    node.firstChild?.nodeType !== Node.TEXT_NODE ||
    node.firstChild.data !== text ||
    !!node.children.length !== !!extra
  )
    node.replaceChildren(text || "", ...(extra ? [extra()] : []));
  node.className = "banner " + className;
}

function draw(doc) {
  const [word, className] = STATES[doc.server.state] || [doc.server.state, "busy"],
    { reason } = doc.server;
  say($("state"), word, "pill " + className);
  say($("host"), `${doc.server.host} · up ${span(doc.server.uptime_seconds)}`);
  document.title = `${page ? page.place.name : word} · ${doc.server.host} · edge-serve`;
  $("main").className = "";
  banner(
    reason && !(page && doc.server.state === "not ready") ? `${word}: ${reason}` : "",
    className,
    doc.server.state === "safe mode" && mayManage(doc) && safeModeButton,
  );
  if (page) page.draw(doc);
  else {
    drawOverview(doc, past);
    settings.show(doc);
  }
}

/** Show what the address says: a model, or everything. */
function go() {
  let words = [];
  try {
    words = location.hash.slice(1).split("/").map(decodeURIComponent);
  } catch {
    /* a broken address: everything */
  }
  const [kind, name, version = ""] = words,
    before = page;
  page = kind === "model" && name ? new ModelPage(past, { name, version }) : null;
  $("model").replaceChildren(...(page ? [page.node] : []));
  $("model").hidden = !page;
  $("overview").hidden = !!page;
  if (past.newest && lastAnswer !== null) draw(past.newest);
  if (page || before) scrollTo(0, 0);
  if (page) page.title.focus({ preventScroll: true });
  else if (before) $("models-title").focus({ preventScroll: true });
}

function lost(text) {
  say($("state"), "No connection", "pill bad");
  document.title = "No connection · edge-serve";
  $("main").classList.toggle("old", lastAnswer !== null);
  const since = lastAnswer === null ? "" : ` Everything below is as it was at ${clock(lastAnswer)}.`;
  banner(`${text} Trying again.${since}`, "bad");
}

/** The server wants to know who asks: a token is kept for this tab only. */
function askToken(refusal) {
  say($("state"), "Locked", "pill busy");
  const node = $("banner");
  if (node.querySelector("form")) return;
  const before = make("span", "", hasToken() ? `The server refused the token: ${refusal}. ` : "");
  const text = [
    before,
    "Enter a token with the role ",
    make("code", "", "read"),
    " (made by ",
    make("code", "", "edge-serve token FILE read NAME"),
    ").",
  ];
  const input = make("input"),
    form = make("form", "", input, make("button", "primary", "Show"));
  input.type = "password";
  input.placeholder = "Token";
  input.autocomplete = "off";
  input.setAttribute("aria-label", "Token with the role read");
  form.addEventListener("submit", event => {
    event.preventDefault();
    const found = input.value.trim();
    if (!isToken(found)) {
      say(before, "A token has ASCII letters, digits, and signs only: copy the line that edge-serve token printed. ");
      return;
    }
    setToken(found);
    node.replaceChildren();
    look();
  });
  node.hidden = false;
  node.className = "banner busy";
  node.replaceChildren(...text, form);
}

async function look() {
  clearTimeout(timer);
  let again = true;
  const limit = new AbortController(),
    late = setTimeout(() => limit.abort(), PATIENCE);
  try {
    const doc = await (await ask("edge-serve/status", { signal: limit.signal })).json();
    lastAnswer = Date.now();
    past.add(doc);
    draw(doc);
  } catch (error) {
    if (error instanceof Refused) {
      // a tab that is left at the form must not be refused each second: operators have an alert on refused clients
      again = error.status !== 401 && error.status !== 403;
      if (!again) askToken(error.message);
      else lost(`The server refuses to tell its state: ${error.message}.`);
    } else {
      lost(
        error.name === "AbortError"
          ? `The server did not answer within ${PATIENCE / 1000} s.`
          : "The server does not answer.",
      );
      if (!["AbortError", "TypeError"].includes(error.name)) throw error;
    }
  } finally {
    clearTimeout(late);
    clearTimeout(timer);
    if (again && !document.hidden) timer = setTimeout(look, PERIOD);
  }
}

watchChoice(() => past.newest);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) look();
});
addEventListener("hashchange", go);
// a file that is dropped beside its place must not replace the page
for (const kind of ["dragover", "drop"]) addEventListener(kind, event => event.preventDefault());
go();
look();
