// What the console's pages do with script; without it they lack nothing but the moving parts.
"use strict";

const LIVE_EVERY_MS = 3000;

// Parts marked `data-live` are read again from the page's own address and replaced.
function keepLive() {
  if (!document.querySelector("[data-live]")) return;
  let isOn = true;
  const control = document.querySelector("[data-live-control]");
  const said = document.createElement("span");
  const button = document.createElement("button");
  button.type = "button";
  button.className = "link";
  const show = () => {
    said.textContent = isOn ? "Updates by itself" : "Stands still";
    button.textContent = isOn ? "Pause" : "Go on";
  };
  if (control) {
    show();
    button.addEventListener("click", () => { isOn = !isOn; show(); });
    control.append(said, button);
    control.hidden = false;
  }

  async function refresh() {
    if (!isOn || document.hidden) return;
    let response;
    try {
      response = await fetch(location.href, { headers: { "x-hearth-live": "1" }, cache: "no-store" });
    } catch {
      said.textContent = "The gateway does not answer";
      return;
    }
    if (response.status === 401) { location.reload(); return; }
    if (!response.ok) return;
    show();
    const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
    for (const part of document.querySelectorAll("[data-live]")) {
      const other = fresh.getElementById(part.id);
      // What somebody is in, or has opened, stays as it is.
      if (!other || part.contains(document.activeElement) || part.querySelector("details[open]")) continue;
      part.replaceChildren(...other.childNodes);
    }
  }
  setInterval(refresh, LIVE_EVERY_MS);
}

keepLive();
