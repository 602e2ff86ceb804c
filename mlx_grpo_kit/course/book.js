// A picture or a formula that is wider than the page scrolls in its box. Where it does, the Tab key reaches the box, and
// the arrow keys scroll it; not every browser gives a box that scrolls to the keyboard by itself.
const reach = new ResizeObserver(changes => changes.forEach(({target}) => {
  if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
  else target.removeAttribute("tabindex");
}));
document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll(".kit-formula, article [style*=overflow-x]").forEach(box => reach.observe(box));
});
