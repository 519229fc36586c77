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
if (opener) opener.addEventListener("click", event => {
  event.preventDefault();
  const calls = [...document.querySelectorAll("details.call")];
  const open = calls.some(call => !call.open);
  for (const call of calls) call.open = open;
  opener.textContent = open ? "fold all calls" : "open all calls";
});

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
