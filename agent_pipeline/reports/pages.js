"use strict";
// The links of a single file work only if `agent-pipeline pages` serves it.
const base = document.documentElement.dataset.served;
if (base && base !== "/") {
  for (const link of document.querySelectorAll("[data-page]")) link.href = base + link.dataset.page;
  for (const link of document.querySelectorAll("[data-session]")) {
    const query = new URLSearchParams({ id: link.dataset.session, message: link.dataset.message });
    link.href = `${base}session?${query}#message-${link.dataset.message}`;
    link.hidden = false;
  }
  document.querySelector("nav.top").hidden = false;
}

// A link to a folded message opens it.
const reveal = () => {
  const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let element = target; element; element = element.parentElement) if (element.tagName === "DETAILS") element.open = true;
  if (target && target.classList.contains("item")) target.querySelector("details").open = true;
  if (target) target.scrollIntoView();
  return target;
};
addEventListener("hashchange", reveal);
const start = document.querySelector("[data-start-here]");
if (!reveal() && start) {
  // The heights of turns outside the view are estimates until the browser has drawn them.
  const toEnd = () => scrollTo(0, document.documentElement.scrollHeight);
  toEnd();
  requestAnimationFrame(() => { toEnd(); requestAnimationFrame(toEnd); });
}
const opener = document.querySelector("[data-open-calls]");
const openCalls = () => {
  const calls = [...document.querySelectorAll("details.call")];
  const open = calls.some(call => !call.open);
  for (const call of calls) call.open = open;
  if (opener) opener.textContent = open ? "fold all calls" : "open all calls";
};
opener?.addEventListener("click", event => { event.preventDefault(); openCalls(); });

// The filters of a list stand in the address, so that a link leads to a filtered list.
const items = [...document.querySelectorAll(".item")].map(element => ({ element, text: element.textContent.toLowerCase() }));
const filters = [...document.querySelectorAll("[data-filter]")];
const more = document.querySelector("[data-more]");
let limit = Number(more?.dataset.more ?? Infinity);
const applyFilters = () => {
  const wanted = filters.filter(filter => filter.value);
  const fits = item => wanted.every(filter => filter.name === "text" ? item.text.includes(filter.value.toLowerCase()) : item.element.dataset[filter.name] === filter.value);
  let matching = 0;
  for (const item of items) {
    const matches = fits(item);
    matching += matches ? 1 : 0;
    item.element.hidden = !matches || matching > limit;
  }
  document.getElementById("count").textContent = `${Math.min(matching, limit)} of ${items.length} shown`;
  if (more) more.hidden = matching <= limit;
};
if (filters.length) {
  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
    const filter = filters.find(element => element.name === name);
    if (filter) filter.value = value;
  }
  for (const filter of filters) filter.addEventListener("input", () => {
    applyFilters();
    location.replace("#" + new URLSearchParams(filters.filter(element => element.value).map(element => [element.name, element.value])));
  });
  if (more) more.addEventListener("click", () => { limit += Number(more.dataset.more); applyFilters(); });
  if (items.some(item => item.element.id && "#" + item.element.id === location.hash)) limit = Infinity;
  applyFilters();
  reveal();
}

// The review: one key per judgment. A key counts only after the last judgment is saved.
const bar = document.querySelector("[data-review]");
if (bar) {
  const note = document.getElementById("note");
  const problem = document.getElementById("problem");
  const say = sentence => { problem.textContent = sentence; problem.hidden = !sentence; };
  problem.classList.add("said");
  say("");
  let busy = false;
  const save = async mark => {
    if (busy || !bar.dataset.review) return;
    busy = true;
    say("");
    try {
      const answer = await fetch(location.pathname, {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ session_id: bar.dataset.review, annotator: bar.dataset.annotator, mark, note: note.value }),
        // A server that hangs is as bad as a dead one: the page says so.
        signal: AbortSignal.timeout(30000),
      });
      const result = await answer.json();
      if (!answer.ok) throw new Error(result.error);
      if (mark) location.assign(result.next);
      else { busy = false; note.blur(); }
    } catch (error) {
      busy = false;
      const silent = error instanceof TypeError || error.name === "TimeoutError";
      say(silent ? "Not saved: the server does not answer. Start agent-pipeline review again, then press the key again." : `Not saved: ${error.message}`);
    }
  };
  const go = address => { if (address && !busy) { busy = true; location.assign(address); } };
  const keys = {
    a: () => save("acceptable"), u: () => save("unacceptable"), "?": () => save("unsure"), s: () => save("skip"),
    j: () => go(bar.dataset.next), k: () => go(bar.dataset.previous),
    n: () => note?.focus(),
    g: () => { const text = document.getElementById("guidelines"); if (text) { text.open = !text.open; text.scrollIntoView(); } },
    e: openCalls,
  };
  addEventListener("keydown", event => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.repeat) return;
    if (event.target.matches("input, textarea, select")) {
      if (event.target === note && event.key === "Enter") { event.preventDefault(); save(""); }
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
  // A page that the browser restores from memory is as if it was loaded.
  addEventListener("pageshow", () => { busy = false; });
  for (const button of bar.querySelectorAll("[data-mark]")) button.addEventListener("click", () => save(button.dataset.mark));
}
