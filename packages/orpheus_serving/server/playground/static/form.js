// The form: text, emotion tags, voice, settings. It keeps itself as a draft, and becomes the body of a request.

import { loadDraft, saveDraft } from "./drafts.js";

const NUMBERS = ["temperature", "top_p", "repetition_penalty", "seed"];
const GREETING = "Hello! You hear this sentence while the rest of it is still being made.";

const $ = (id) => document.getElementById(id);
let model = null;

export function hasText() {
  return $("text").value.trim() !== "";
}

/** The body of a request. A seed is always sent, so that what is heard can be had again. */
export function takeRequest() {
  const body = { input: $("text").value, voice: chosenVoice(), seed: Math.floor(Math.random() * 2 ** 32) };
  for (const name of NUMBERS) if ($(name).value !== "") body[name] = Number($(name).value);
  return body;
}

/** Lead to the field that the server, or the page, objects to. Other fields are not in the form. */
export function markWrong(field) {
  if (NUMBERS.includes(field)) {
    $("settings").open = true;
    $(field).setAttribute("aria-invalid", "true");
    $(field).focus();
  } else if (field === "input") $("text").focus();
}

export function restoreDraft() {
  const draft = loadDraft();
  $("text").value = draft.text ?? GREETING;
  for (const name of NUMBERS) $(name).value = draft[name] ?? "";
  refresh();
}

/** Offer the voices and emotion tags of `{voices, default_voice, tags, sampling, max_text}`. */
export function fillChoices(offered) {
  model = offered;
  const kept = loadDraft().voice;
  const voice = model.voices.includes(kept) ? kept : model.default_voice;
  $("voices").replaceChildren(...model.voices.map((name) => voiceChoice(name, name === voice)));
  $("tags").replaceChildren(...model.tags.map(tagButton));
  $("voices-row").hidden = !model.voices.length;
  $("tags-row").hidden = !model.tags.length;
  refresh();
}

function voiceChoice(name, checked) {
  const label = document.createElement("label");
  const words = Object.assign(document.createElement("span"), { textContent: name });
  label.append(Object.assign(document.createElement("input"), { type: "radio", name: "voice", value: name, checked }), words);
  return label;
}

function tagButton(tag) {
  const button = Object.assign(document.createElement("button"), { type: "button", textContent: tag });
  button.setAttribute("aria-label", `Insert ${tag}`);
  button.addEventListener("click", () => insertTag(tag));
  return button;
}

/** Put a tag where the caret is, or in place of what is marked, with spaces around it. */
function insertTag(tag) {
  const box = $("text");
  const [before, after] = [box.value.slice(0, box.selectionStart), box.value.slice(box.selectionEnd)];
  const spaced = `${/(^|\s)$/.test(before) ? "" : " "}<${tag}>${/^\s/.test(after) ? "" : " "}`;
  box.setRangeText(spaced, box.selectionStart, box.selectionEnd, "end");
  box.focus();
  edited();
}

function chosenVoice() {
  return document.querySelector("input[name=voice]:checked")?.value;
}

/** Somebody changed something. */
function edited() {
  const draft = { text: $("text").value, voice: chosenVoice() };
  for (const name of NUMBERS) {
    draft[name] = $(name).value;
    $(name).removeAttribute("aria-invalid");
  }
  saveDraft(draft);
  refresh();
}

/** Say what the form holds: how much text, and what differs from the model's own settings. */
function refresh() {
  const set = NUMBERS.filter((name) => $(name).value !== "");
  $("chosen").textContent = set.map((name) => `${name.replace("_", " ")} ${$(name).value}`).join(", ") || "as the model likes them";
  $("reset").hidden = !set.length;
  if (!model) return;
  for (const [name, value] of Object.entries(model.sampling[chosenVoice() ?? ""])) $(name).placeholder = value;
  const [length, most] = [[...$("text").value].length, model.max_text];
  $("count").textContent = `${length.toLocaleString("en")} of ${most.toLocaleString("en")} characters`;
  $("count").classList.toggle("over", length > most);
}

$("form").addEventListener("input", edited);
$("reset").addEventListener("click", () => {
  for (const name of NUMBERS) $(name).value = "";
  edited();
});
