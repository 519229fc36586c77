const items = [...document.querySelectorAll(".item")].map(element => ({ element, text: element.textContent.toLowerCase() }));
const filters = [...document.querySelectorAll("select, input")];
const apply = () => {
  const wanted = filters.filter(filter => filter.value);
  const fits = item => wanted.every(filter => filter.name === "text" ? item.text.includes(filter.value.toLowerCase()) : item.element.dataset[filter.name] === filter.value);
  let shown = 0;
  for (const item of items) {
    item.element.hidden = !fits(item);
    shown += item.element.hidden ? 0 : 1;
  }
  document.getElementById("count").textContent = `${shown} of ${items.length} shown`;
};
// What is filtered stands in the address, so that a link leads to it: report.html#class=call&outcome=lost
for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
  const filter = filters.find(each => each.name === name);
  if (filter) filter.value = value;
}
for (const filter of filters) {
  filter.addEventListener("input", () => {
    apply();
    location.replace("#" + new URLSearchParams(filters.filter(each => each.value).map(each => [each.name, each.value])));
  });
}
apply();
