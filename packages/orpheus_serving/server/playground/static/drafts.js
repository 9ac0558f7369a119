// What is kept between visits: the draft and the settings in this browser, the API key in this tab. Nothing leaves the machine.

const DRAFT = "orpheus-playground-draft";
const KEY = "orpheus-playground-key";

/** `{text, voice, temperature, ...}` as it was left, or `{}`. */
export function loadDraft() {
  try {
    return JSON.parse(localStorage.getItem(DRAFT)) ?? {};
  } catch {
    return {}; // storage is off, or holds something else
  }
}

export function saveDraft(draft) {
  tolerant(() => localStorage.setItem(DRAFT, JSON.stringify(draft)));
}

export function loadKey() {
  return tolerant(() => sessionStorage.getItem(KEY)) ?? "";
}

export function saveKey(key) {
  tolerant(() => sessionStorage.setItem(KEY, key));
}

/** Private windows may refuse storage; the page works without. */
function tolerant(action) {
  try {
    return action();
  } catch {
    return null;
  }
}
