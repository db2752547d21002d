// Elements from text alone: nothing that comes from outside is ever read as HTML.

export const byId = (id) => document.getElementById(id);

/** An element with attributes and children; strings become text. */
export function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") made.addEventListener("click", value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

export const fill = (id, ...children) => byId(id).replaceChildren(...children.filter((child) => child != null));

export const tag = (label) => make("b", { class: `tag ${label}` }, label);

/** A number for people: a few digits, with an exponent where it is tiny or huge. */
export function figure(value, digits = 4) {
  if (value == null) return "–";
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e7)) return String(Number(value.toPrecision(digits)).toExponential()).replace("e+", "e");
  return Number(value.toPrecision(digits)).toLocaleString("en", { maximumSignificantDigits: digits });
}

/** A number that is not to be exceeded, rounded up. */
export function bound(value, digits = 4) {
  const near = Number(value.toPrecision(digits));
  return figure(near >= value ? near : near + 10 ** (Math.floor(Math.log10(value)) + 1 - digits), digits);
}

/** First to last, once if they are the same. */
export const span = ([first, last]) => (first === last ? first : `${first} → ${last}`);

/** An epsilon with the sign that its label allows: a bound, an estimate, a claim. */
export function epsilon(guarantee) {
  const sign = { certified: "≤", approximate: "≈", claimed: "claimed", empirical: "≥" }[guarantee.label];
  return `ε ${sign} ${guarantee.shown}`;
}
