/** The device image below the server: its versions and faults; hidden on other systems. */

import { $, keep, make, row, say } from "./draw.js";
import { NONE } from "./text.js";

function faultRow() {
  const text = make("div", "warn"),
    help = make("div", "note");
  return {
    node: row([["names", make("div", "", text, help)]]),
    show(fault) {
      say(text, fault.text);
      say(help, [fault.help, fault.since && `Since ${fault.since}.`].filter(Boolean).join(" "));
    },
  };
}

/** One sentence about the system that runs, and the others that the device could start. */
function sentence(system) {
  if (system.problem) return system.problem;
  const others = system.entries
    .filter(one => one.state !== "good")
    .map(one => `version ${one.version} is ${one.state}`);
  return [
    `${system.name || NONE}: version ${system.version || NONE}, slot ${system.slot || NONE}`,
    ...others,
    !system.provisioned && "no settings yet",
  ]
    .filter(Boolean)
    .join("; ");
}

export function drawSystem(doc) {
  const { system } = doc;
  $("system").hidden = $("system-title").hidden = !system;
  if (!system) return;
  const rows = keep($("system"), ["summary", ...system.faults.map(one => "fault " + one.code)], key =>
    key === "summary" ? { node: make("div", "summary") } : faultRow(),
  );
  say(rows[0].node, sentence(system), system.problem ? "summary warn" : "summary");
  system.faults.forEach((one, i) => rows[i + 1].show(one));
}
