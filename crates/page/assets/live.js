// Asks for the page again and again while what it shows goes on. Only a page that is served has this; the one that is served last
// has it no more.
(function () {
  "use strict";
  const every = Number(document.querySelector('meta[name="live"]').content);
  async function again() {
    let text;
    try {
      text = await (await fetch(location.href)).text();
    } catch {
      const told = document.createElement("p");
      Object.assign(told, { className: "faint", textContent: "Nobody answers any more: this is what was seen last." });
      document.querySelector("main").prepend(told);
      return;
    }
    dispatchEvent(new CustomEvent("renew", { detail: text }));
    if (text.includes('<meta name="live"')) setTimeout(again, every);
  }
  setTimeout(again, every);
})();
