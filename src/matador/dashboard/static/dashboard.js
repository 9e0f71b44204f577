// Live parts of pages, and "select all". Everything else works without this script.
"use strict";

(() => {
  const announce = document.getElementById("announce");
  let said = "";

  const tell = (region) => {
    const spoken = [...region.querySelectorAll("[data-announce]")].map((one) => one.dataset.announce);
    const text = spoken.join(". ");
    if (announce && text && text !== said) announce.textContent = text;
    said = text;
  };

  // A part that somebody works in is left alone: their focus and selection would be lost.
  const isBusy = (region) => {
    const focused = document.activeElement;
    if (focused && focused !== document.body && region.contains(focused)) return true;
    if (region.querySelector("input[type=checkbox]:checked, details[open]")) return true;
    const selection = document.getSelection();
    return selection !== null && !selection.isCollapsed && region.contains(selection.anchorNode);
  };

  for (const region of document.querySelectorAll("[data-live]")) {
    const source = new EventSource(region.dataset.live);
    source.addEventListener("part", (event) => {
      if (isBusy(region)) return;
      region.innerHTML = event.data; // rendered by the server, with everything escaped
      tell(region);
    });
    tell(region);
    addEventListener("pagehide", () => source.close());
  }

  document.addEventListener("change", (event) => {
    const all = event.target;
    if (!(all instanceof HTMLInputElement) || !("selectAll" in all.dataset)) return;
    for (const box of all.form.querySelectorAll("input[name=letter]")) box.checked = all.checked;
  });
})();
