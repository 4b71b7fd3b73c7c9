/** What edge-ota tells of releases and updates; hidden where there is no agent. */

import { $, header, keep, make, row, say } from "./draw.js";
import { NONE, span } from "./text.js";

const AMBER = new Set(["PLANNED", "INSTALLED", "READY", "TESTED", "SWITCHING", "PROBATION"]);

function releaseRow() {
  const name = make("div", "title"),
    reason = make("div", "note");
  const [serves, state, next, fetched] = [0, 0, 0, 0].map(() => make("span"));
  const node = row([
    ["name", name],
    ["right", serves, "serves"],
    ["", state, "state"],
    ["right", next, "next"],
    ["right", fetched, "fetched"],
    ["names", reason],
  ]);
  return {
    node,
    show(one) {
      const stage = one.stage || (one.release ? "GOOD" : NONE);
      say(name, one.name);
      say(serves, one.release ? String(one.release) : NONE);
      say(state, stage, AMBER.has(stage) ? "amber" : "");
      say(next, one.next ? String(one.next) : NONE);
      say(fetched, one.total_bytes ? `${Math.floor((100 * one.done_bytes) / one.total_bytes)} %` : NONE);
      say(reason, one.reason);
    },
  };
}

/** One sentence about the agent. */
function sentence(updates, now) {
  if (updates.problem) return updates.problem;
  const checked = updates.last_check ? `last check ${span(Math.max(0, now - updates.last_check))} ago` : "no check yet";
  return [
    updates.state || "idle",
    checked,
    updates.clock_unset && "the clock is not set",
    updates.paused && `paused: ${updates.paused}`,
    updates.error && `${updates.error_reason}: ${updates.error}`,
  ]
    .filter(Boolean)
    .join("; ");
}

export function drawUpdates(doc) {
  const { updates } = doc;
  $("updates").hidden = $("updates-title").hidden = !updates;
  if (!updates) return;
  const bundles = updates.bundles;
  const keys = ["summary", ...(bundles.length ? ["head"] : []), ...bundles.map(one => "of " + one.name)];
  const rows = keep($("updates"), keys, key => {
    if (key === "summary") return { node: make("div", "summary") };
    if (key !== "head") return releaseRow();
    const titles = [["", "Release of"], ["right", "Serves"], ["", "State"], ["right", "Next"], ["right", "Fetched"], ["", ""]];
    return { node: header(titles) };
  });
  const trouble = updates.problem || updates.error;
  say(rows[0].node, sentence(updates, doc.time_ms / 1000), trouble ? "summary warn" : "summary");
  bundles.forEach((one, i) => rows[i + 2].show(one));
}
