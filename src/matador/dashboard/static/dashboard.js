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

  // Do not replace a part that the user works in: focus and selection would be lost.
  const isBusy = (region) => {
    const focused = document.activeElement;
    if (focused && focused !== document.body && region.contains(focused)) return true;
    if (region.querySelector("input[type=checkbox]:checked, details[open]")) return true;
    const selection = document.getSelection();
    return selection !== null && !selection.isCollapsed && region.contains(selection.anchorNode);
  };

  // A page that has stopped changing must not look as if all were quiet.
  const stale = document.getElementById("stale");
  const PATIENCE = 8000; // the browser tries again after three seconds
  let doubt = 0;

  const isLive = () => {
    clearTimeout(doubt);
    doubt = 0;
    if (stale) stale.hidden = true;
  };

  const mayBeStale = (source) => {
    const isOver = source.readyState === EventSource.CLOSED; // refused: it does not try again
    const show = () => {
      if (!stale || !stale.hidden) return;
      stale.textContent = isOver
        ? "This page no longer changes by itself: the session has ended, or too many pages are open. Reload it."
        : "The dashboard does not answer. This page shows what was known last, and goes on when it is back.";
      stale.hidden = false;
    };
    if (isOver) show();
    else if (!doubt) doubt = setTimeout(show, PATIENCE);
  };

  for (const region of document.querySelectorAll("[data-live]")) {
    const source = new EventSource(region.dataset.live);
    source.addEventListener("open", isLive);
    source.addEventListener("error", () => mayBeStale(source));
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
    for (const box of all.form.querySelectorAll("tbody input[type=checkbox]")) box.checked = all.checked;
  });
})();
