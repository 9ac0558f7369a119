// The last few utterances, newest first; each a button that plays it again. They are gone when the tab is closed.

import { seconds } from "./stage.js";

const KEPT = 8;

const $ = (id) => document.getElementById(id);
const known = new WeakSet();

/** Add an utterance, once; `replay(utterance)` is what its button does. */
export function remember(utterance, replay) {
  if (known.has(utterance)) return;
  known.add(utterance);
  const { input, voice, seed } = utterance.request;
  const note = [voice, seconds(utterance.seconds), `seed ${seed}`, utterance.broken && "broken off"];
  const button = Object.assign(document.createElement("button"), { type: "button" });
  button.append(words("said", input), words("note", note.filter(Boolean).join(" · ")));
  button.addEventListener("click", () => replay(utterance));
  const row = document.createElement("li");
  row.append(button);
  $("utterances").prepend(row);
  while ($("utterances").children.length > KEPT) $("utterances").lastChild.remove();
  $("history").hidden = false;
}

function words(name, text) {
  return Object.assign(document.createElement("span"), { className: name, textContent: text });
}
