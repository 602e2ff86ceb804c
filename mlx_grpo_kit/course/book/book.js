// A picture or a formula that is wider than the page scrolls in its box. Where it does, the Tab key reaches the box, and
// the arrow keys scroll it; not every browser gives a box that scrolls to the keyboard by itself.
const reach = new ResizeObserver(changes => changes.forEach(({target}) => {
  if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
  else target.removeAttribute("tabindex");
}));
// What the search shows of a page: not the list of contents that is there for paper, and no half words.
const shorten = Search => {
  const {htmlToText, makeSearchSummary} = Search;
  Search.htmlToText = (html, anchor) => {
    const page = new DOMParser().parseFromString(html, "text/html");
    page.querySelectorAll(".onlyprint").forEach(part => part.remove());
    return htmlToText(page.documentElement.outerHTML, anchor);
  };
  Search.makeSearchSummary = (...arguments_) => {
    const summary = makeSearchSummary(...arguments_);
    if (summary) summary.textContent = summary.textContent.replace(/^\.{3}\S*\s+/, "… ").replace(/\s+\S*\.{3}$/, " …");
    return summary;
  };
};
document.addEventListener("DOMContentLoaded", () => {
  if (typeof Search !== "undefined") shorten(Search);
  document.querySelectorAll(".kit-formula, article [style*=overflow-x]").forEach(box => reach.observe(box));
});
