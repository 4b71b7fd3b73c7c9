/** Building blocks of the page. Text is set as text, never as markup. */

import { SPAN } from "./history.js";

export const $ = id => document.getElementById(id);

export function make(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

/** Text that changes: the document is touched only when it does. */
export function say(node, text, className) {
  if (node.textContent !== text) node.textContent = text;
  if (className !== undefined && node.className !== className) node.className = className;
}

/** One child of `parent` for each key, in order. `create` makes a missing one; others are removed. */
export function keep(parent, keys, create) {
  const known = parent.known || (parent.known = new Map()),
    wanted = new Set(keys);
  for (const [key, entry] of known)
    if (!wanted.has(key)) {
      entry.node.remove();
      known.delete(key);
    }
  return keys.map((key, i) => {
    let entry = known.get(key);
    if (!entry) known.set(key, (entry = create(key)));
    if (parent.children[i] !== entry.node) parent.insertBefore(entry.node, parent.children[i] || null);
    return entry;
  });
}

export function forgetChildren(parent) {
  parent.known = new Map();
  parent.replaceChildren();
}

/** A button that calls `act`; while that runs, it is disabled. */
export function button(text, className, act) {
  const node = make("button", className, text);
  node.type = "button";
  node.addEventListener("click", async event => {
    node.disabled = true;
    try {
      await act(event);
    } finally {
      node.disabled = false;
    }
  });
  return node;
}

/** One of several: a row of toggle buttons. `chosen` is called with the value. */
export function choice(label, options, chosen) {
  const node = make("span", "choice");
  node.setAttribute("role", "group");
  node.setAttribute("aria-label", label);
  const pick = value => {
    for (const child of node.children) child.setAttribute("aria-pressed", String(child.value === value));
  };
  for (const [value, text] of options) {
    const child = make("button", "", text);
    child.type = "button";
    child.value = value;
    child.addEventListener("click", () => {
      pick(value);
      chosen(value);
    });
    node.append(child);
  }
  pick(options[0][0]);
  return { node, pick };
}

/** A labelled control; the label's text comes first. */
export function field(text, control, className = "field") {
  return make("label", className, make("span", "", text), control);
}

export function select(options, value) {
  const node = make("select");
  for (const [key, text] of options) {
    const option = make("option", "", text);
    option.value = key;
    node.append(option);
  }
  if (value !== undefined) node.value = value;
  return node;
}

/** A question with two answers; the promise is true when `yes` was chosen. */
export function confirmed(title, text, yes) {
  return new Promise(resolve => {
    const dialog = make("dialog", "card"),
      form = make("form");
    const go = make("button", "primary", yes),
      cancel = make("button", "", "Cancel");
    form.method = "dialog";
    go.value = "yes";
    cancel.value = "";
    const heading = make("h2", "", title);
    heading.id = "question";
    dialog.setAttribute("aria-labelledby", "question");
    form.append(heading, make("p", "", text), make("div", "buttons", go, cancel));
    dialog.append(form);
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** Copy text; without the clipboard, which browsers give to https and localhost only, select `node` and copy that. */
export async function copy(text, node) {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      /* not allowed: the other way */
    }
  }
  const range = document.createRange();
  range.selectNodeContents(node);
  getSelection().removeAllRanges();
  getSelection().addRange(range);
  return document.execCommand("copy");
}

export function save(name, data) {
  const link = make("a");
  link.href = URL.createObjectURL(new Blob([data]));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60e3);
}

// ---- charts ---------------------------------------------------------------------------------------------------------

function svg(tag, className) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  node.setAttribute("class", className);
  return node;
}

/**
 * Lines over the last 60 seconds, with one scale from 0 to their highest value, or to `floor` if that is higher. The top
 * of the scale is written at the top left. The value under the pointer is written in its place; with the keyboard, arrow
 * keys move along the line. `lines` has {field, name, className}, `format` makes text of a value.
 */
export function chart(label, lines, { floor = 0, format, small = false }) {
  const picture = svg("svg", ""),
    most = make("span", "most"),
    cursor = make("i", "cursor");
  const node = make(
    "div",
    small ? "chart small" : "chart",
    make("div", "scale", most),
    make("div", "plot", picture, cursor),
  );
  const plot = node.lastChild;
  picture.setAttribute("viewBox", "0 0 100 100");
  picture.setAttribute("preserveAspectRatio", "none");
  picture.setAttribute("aria-hidden", "true");
  const drawn = lines.map(({ field, className }) => {
    const group = svg("g", className || ""),
      area = svg("path", "area"),
      line = svg("path", "line");
    group.append(area, line);
    picture.append(group);
    return { field, area, line };
  });
  let points = [],
    top = floor,
    known = false,
    at = null;

  if (small) node.title = `${label}, last ${SPAN} s`;
  else {
    node.firstChild.append(make("span", "", `last ${SPAN} s`));
    node.tabIndex = 0;
    for (const [name, value] of Object.entries({
      role: "slider",
      "aria-label": `${label}, last ${SPAN} seconds`,
      "aria-valuemin": -SPAN,
      "aria-valuemax": 0,
      "aria-valuenow": 0,
    }))
      node.setAttribute(name, value);
    node.addEventListener("keydown", event => {
      const step = {
        ArrowLeft: -1,
        ArrowDown: -1,
        ArrowRight: 1,
        ArrowUp: 1,
        Home: -SPAN,
        End: SPAN,
        PageUp: 10,
        PageDown: -10,
      }[event.key];
      if (event.key === "Escape") point(null);
      else if (step) {
        event.preventDefault();
        point(Math.max(-SPAN, Math.min(0, (at ?? 0) + step)));
      }
    });
    node.addEventListener("focus", () => {
      if (node.matches(":focus-visible")) point(at ?? 0);
    });
    node.addEventListener("blur", () => point(null));
  }
  plot.addEventListener("pointermove", event => {
    const box = plot.getBoundingClientRect();
    point(((event.clientX - box.left) / box.width - 1) * SPAN);
  });
  plot.addEventListener("pointerleave", () => point(null));

  function valueAt(seconds) {
    const end = points.length ? points[points.length - 1].at : 0;
    let best = null;
    for (const one of points)
      if (!best || Math.abs(one.at - end - seconds) < Math.abs(best.at - end - seconds)) best = one;
    return best && Math.abs(best.at - end - seconds) < 3 ? best : null;
  }

  /** Show the value at `at` seconds (0 = now, -60 = a minute ago); null = none. */
  function point(seconds) {
    at = seconds;
    cursor.hidden = at === null;
    node.classList.toggle("pointed", at !== null);
    const found = at === null ? null : valueAt(at),
      ago = at === null ? 0 : Math.round(-at);
    if (at === null) say(most, known ? format(top) : "");
    else {
      const texts = found
        ? lines.map(({ field, name }) => `${format(found[field])}${name ? " " + name : ""}`)
        : ["no value"];
      say(most, `${texts.join(", ")}${ago ? `, ${ago} s ago` : ", now"}`);
      cursor.style.left = `${(1 + at / SPAN) * 100}%`;
    }
    if (!small) {
      node.setAttribute("aria-valuenow", String(-ago));
      node.setAttribute("aria-valuetext", at === null ? "arrow keys show values" : most.textContent);
    }
  }

  point(null);
  return {
    node,
    draw(newest) {
      points = newest;
      const end = points.length ? points[points.length - 1].at : 0;
      const values = points.flatMap(one => lines.map(({ field }) => one[field] ?? 0));
      known = points.some(one => lines.some(({ field }) => one[field] != null));
      top = Math.max(floor, ...values);
      node.classList.toggle("flat", !values.some(Boolean));
      for (const { field, area, line } of drawn) {
        let stroke = "",
          fill = "",
          first = null,
          x = 0,
          previous = null;
        const close = () => {
          if (first !== null) fill += `L${x} 100L${first} 100Z`;
          first = null;
        };
        for (const one of points) {
          if (one[field] == null || (previous !== null && one.at - previous > 5)) close();
          previous = one.at;
          if (one[field] == null) continue;
          x = (100 - ((end - one.at) / SPAN) * 100).toFixed(2);
          const spot = `${x} ${(98 - (one[field] / (top || 1)) * 95).toFixed(2)}`;
          fill += first === null ? `M${x} 100L${spot}` : `L${spot}`;
          stroke += (first === null ? "M" : "L") + spot;
          if (first === null) first = x;
        }
        close();
        line.setAttribute("d", stroke);
        area.setAttribute("d", fill);
      }
      point(at);
    },
  };
}

// ---- tiles and rows -------------------------------------------------------------------------------------------------

export function tile(name, plot, className = "") {
  const note = make("div", "remark"),
    value = make("span"),
    unit = make("small");
  const node = make(
    "div",
    "card tile " + className,
    make("div", "name", name),
    make("div", "value", value, unit),
    note,
  );
  if (plot) node.append(plot.node);
  return {
    node,
    plot,
    show(text, unitText, noteText, points) {
      say(value, text);
      say(unit, unitText);
      say(note, noteText);
      if (plot) plot.draw(points);
    },
  };
}

export function meter(name) {
  const made = tile(name),
    fill = make("div");
  made.node.append(make("div", "bar", fill));
  return {
    ...made,
    level(share) {
      fill.style.width = Math.min(100, share * 100) + "%";
      fill.className = share > 0.9 ? "high" : "";
    },
  };
}

/**
 * A row of a table. `cells` has [class, node, title]; the title stands above the cell on narrow screens, and is read by screen
 * readers on all.
 */
export function row(cells) {
  return make(
    "div",
    "row",
    ...cells.map(([className, cell, title]) =>
      make("div", className, ...(title ? [make("span", "label", title)] : []), cell),
    ),
  );
}

export function header(cells) {
  const node = make("div", "head", ...cells.map(([className, title]) => make("div", className, title)));
  node.setAttribute("aria-hidden", "true");
  return node;
}
