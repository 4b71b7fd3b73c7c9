/** Requests to this server. Paths are relative to the page, so that a proxy may serve it below another path. */

/** Whether a header can carry this token: fetch throws for other letters, as if the server did not answer. */
export const isToken = text => /^[ -~]+$/.test(text);

let token = stored();

export const hasToken = () => token !== "";
export function setToken(text) {
  token = text;
  try {
    sessionStorage.setItem("token", token);
  } catch {
    /* the browser stores nothing: the token is kept until the page is loaded again */
  }
}

/** The token of this tab; "" = none, or the browser stores nothing. */
function stored() {
  try {
    const text = sessionStorage.getItem("token") || "";
    return isToken(text) ? text : "";
  } catch {
    return "";
  }
}

/** Where requests go, for copied commands: scheme, host, and the path before "ui". */
export const base = () => new URL(".", location.href).href;

/** The server's answer was an error. `message` is its own text. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** An answer with a good status; throws Refused for others, and what fetch throws when there is no answer. */
export async function ask(path, options = {}) {
  const headers = { ...options.headers, ...(token ? { Authorization: "Bearer " + token } : {}) };
  const answer = await fetch(path, { cache: "no-store", ...options, headers });
  if (answer.ok) return answer;
  const { error = `status ${answer.status}` } = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, error);
}

export const read = async path => (await ask(path)).json();
export const post = async (path, value) =>
  ask(path, { method: "POST", body: JSON.stringify(value), headers: { "Content-Type": "application/json" } });

/** The path of a model, or of one of its versions. */
export const modelPath = (name, version) =>
  `v2/models/${encodeURIComponent(name)}` + (version ? `/versions/${encodeURIComponent(version)}` : "");

/** What to tell a person when a request failed. */
export function failure(error) {
  if (error instanceof Refused) return error.message;
  if (error.name === "AbortError") return "The request was stopped.";
  if (error instanceof TypeError) return "The server does not answer.";
  return error.message;
}
