// The page. Read this file first.
//
//   form -> request -> speech.js -> Int16Array pieces -> player.js (heard) and utterance.js (kept) -> waveform.js, metrics
//
// One utterance at a time: speaking, stopping and replaying each end the one that is on. What the page is doing stands in
// `data-state` of <main>: idle, asking, streaming, playing, done, stopped, broken, refused.

import { loadDraft, loadKey, saveDraft, saveKey } from "./drafts.js";
import { Player, openAudio, restAudio, secondsUntilHeard } from "./player.js";
import { SpeechError, get, speak } from "./speech.js";
import { Utterance } from "./utterance.js";
import { wavFile } from "./wav.js";
import { Waveform } from "./waveform.js";

const NUMBERS = ["temperature", "top_p", "repetition_penalty", "seed"];
const KEPT = 8; // utterances that can be replayed
const GREETING = "Hello! You hear this sentence while the rest of it is still being made.";

const $ = (id) => document.getElementById(id);
const waveform = new Waveform($("waveform"));
let model = null; // what the server says of itself: {name, voices, tags, ...}
let key = loadKey();
let run = null; // what is on: {utterance, player, abort, times}
let shown = null; // the utterance in the picture

// ------------------------------------------------------------------------------------------------- speak, stop, replay

/** Ask for what the form says and play it while it arrives. */
async function speakNow() {
  stop();
  say("");
  if (!model) return describe();
  if (!$("text").value.trim()) return complain("There is nothing to say yet.", $("text"));
  const audio = openAudio(model.sample_rate);
  const mine = (run = { utterance: new Utterance(request(), model.sample_rate), abort: new AbortController(), asked: performance.now() });
  const { utterance } = mine;
  enter("asking", "Waiting for the first sound …");
  $("waveform").scrollIntoView({ block: "nearest" }); // on a phone it lies below the buttons
  try {
    for await (const samples of speak(utterance.request, key, mine.abort.signal)) {
      if (!mine.player) {
        mine.firstByte = performance.now();
        await audio;
        if (mine.abort.signal.aborted) return;
        mine.player = new Player((report) => measure(mine, report));
        enter("streaming", "Speaking …");
      }
      utterance.push(samples);
      mine.player.push(samples);
      mine.lastByte = performance.now();
    }
    enter("playing", "Speaking …");
  } catch (error) {
    if (mine.abort.signal.aborted) return;
    if (!mine.player) return refuse(error);
    utterance.broken = true;
    enter("broken", "The rest is missing.");
    say(`${words(error)} What came before that is kept, ${seconds(utterance.seconds)} of it.`);
  }
  await playOut(mine);
}

/** Everything has been received: let it be heard to its end. */
async function playOut(mine) {
  keep(mine.utterance);
  mine.player.end();
  await mine.player.over;
  if (run !== mine) return;
  run = null;
  restAudio();
  show(mine.utterance);
  if (mine.utterance.broken) enter("broken", `Broke off after ${seconds(mine.utterance.seconds)}.`);
  else enter("done", `Done: ${seconds(mine.utterance.seconds)} of speech.`);
}

/** Silence at once. Closing the connection also ends the work at the server. */
function stop() {
  if (!run) return;
  const { utterance, player, abort } = run;
  run = null;
  abort?.abort();
  player?.stop();
  if (utterance.length) keep(utterance);
  show(utterance, player?.position ?? 0);
  enter("stopped", player ? `Stopped after ${seconds(player.position / utterance.sampleRate)}.` : "Stopped before the first sound.");
}

async function replay(utterance) {
  stop();
  say("");
  const mine = (run = { utterance });
  show(utterance);
  await openAudio(utterance.sampleRate);
  if (run !== mine) return;
  mine.player = new Player(() => {});
  utterance.pieces.forEach((piece) => mine.player.push(piece));
  enter("playing", "Playing again …");
  await playOut(mine);
}

// -------------------------------------------------------------------------------------------------------- what is shown

function enter(state, status) {
  $("page").dataset.state = state;
  $("status").textContent = status;
  const busy = ["asking", "streaming", "playing"].includes(state) || run !== null;
  $("stop").setAttribute("aria-disabled", String(!busy));
  if (busy) requestAnimationFrame(animate);
}

function animate() {
  if (!run) return;
  show(run.utterance, run.player?.position ?? 0);
  requestAnimationFrame(animate);
}

/** Put an utterance into the picture, with its numbers. Without a position it stands at rest, all of it in colour. */
function show(utterance, position = utterance.length) {
  shown = utterance;
  waveform.show(utterance, position, run !== null && !run.player);
  $("clock").textContent = run?.player ? `${(position / utterance.sampleRate).toFixed(1)} of ${utterance.seconds.toFixed(1)} s` : "";
  const { firstByte, firstSpeech, factor, underruns, waited } = utterance.measured ?? {};
  put("first-byte", firstByte, seconds);
  put("first-speech", firstSpeech, seconds);
  put("real-time-factor", factor, (value) => value.toFixed(2));
  put("underruns", underruns, (count) => (count ? `${count} (${seconds(waited)})` : "0"));
  $("replay").hidden = $("download").hidden = run !== null || !utterance.length;
}

function put(id, value, format) {
  $(id).textContent = value === undefined ? "–" : format(value);
}

/** Numbers of a run, renewed at every report of the jitter buffer. */
function measure(mine, report) {
  const { utterance, asked, firstByte, lastByte } = mine;
  if (report.played) mine.began ??= report.time; // the first report with sound is that of its first portion
  const measured = (utterance.measured ??= {});
  measured.firstByte = (firstByte - asked) / 1000;
  measured.factor = (lastByte - asked) / 1000 / utterance.seconds;
  measured.underruns = report.underruns;
  measured.waited = report.waited / utterance.sampleRate;
  if (measured.firstSpeech === undefined && utterance.firstSpeech !== null && report.played > utterance.firstSpeech) {
    const at = mine.began + utterance.firstSpeech / utterance.sampleRate + measured.waited;
    measured.firstSpeech = (performance.now() - asked) / 1000 + secondsUntilHeard(at);
  }
  $("waveform").dataset.played = report.played;
  $("waveform").dataset.received = utterance.length;
}

/** The last few utterances, newest first; each a button that plays it again. */
function keep(utterance) {
  if (utterance.row) return;
  const { input, voice, seed } = utterance.request;
  const note = [voice, seconds(utterance.seconds), `seed ${seed}`, utterance.broken && "broken off"];
  const button = Object.assign(document.createElement("button"), { type: "button" });
  button.append(span("said", input), span("note", note.filter(Boolean).join(" · ")));
  button.addEventListener("click", () => replay(utterance));
  utterance.row = document.createElement("li");
  utterance.row.append(button);
  $("utterances").prepend(utterance.row);
  while ($("utterances").children.length > KEPT) $("utterances").lastChild.remove();
  $("history").hidden = false;
}

function span(name, text) {
  return Object.assign(document.createElement("span"), { className: name, textContent: text });
}

function seconds(value) {
  return value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(1)} s`;
}

// ---------------------------------------------------------------------------------------------------------- what failed

function say(message) {
  $("alert").hidden = !message;
  $("alert").textContent = message;
}

function complain(message, field) {
  say(message);
  if (shown) show(shown);
  enter("refused", "Not spoken.");
  field?.focus();
}

function refuse(error) {
  run = null;
  if (error.kind === "key") return askForKey();
  const field = NUMBERS.includes(error.field) ? $(error.field) : null;
  if (field) {
    $("settings").open = true;
    field.setAttribute("aria-invalid", "true");
  }
  complain(words(error), field);
}

/** What went wrong, for a person. Anything but a SpeechError is a fault of this page: the console has the rest of it. */
function words(error) {
  if (error instanceof SpeechError) return error.message;
  console.error(error);
  return `This page failed: ${error.message}.`;
}

function askForKey() {
  const again = key !== "";
  $("key-form").hidden = false;
  complain(again ? "The server does not accept this API key." : "The server asks for an API key.", $("key"));
}

// ------------------------------------------------------------------------------------------------------------- the form

/** The body of the request. A seed is always sent, so that what is heard can be had again. */
function request() {
  const body = { input: $("text").value, voice: chosenVoice(), seed: Math.floor(Math.random() * 2 ** 32) };
  for (const name of NUMBERS) if ($(name).value !== "") body[name] = Number($(name).value);
  return body;
}

function chosenVoice() {
  return document.querySelector("input[name=voice]:checked")?.value;
}

function insertTag(tag) {
  const box = $("text");
  const [before, after] = [box.value.slice(0, box.selectionStart), box.value.slice(box.selectionEnd)];
  const tagged = `${/(^|\s)$/.test(before) ? "" : " "}<${tag}>${/^\s/.test(after) ? "" : " "}`;
  box.setRangeText(tagged, box.selectionStart, box.selectionEnd, "end");
  box.focus();
  edited();
}

function download() {
  const { pieces, sampleRate, request } = shown;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(wavFile(pieces, sampleRate));
  link.download = `${[request.voice, request.seed].filter((part) => part !== undefined).join("-")}.wav`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** Somebody changed something in the form. */
function edited() {
  const draft = { text: $("text").value, voice: chosenVoice() };
  for (const name of NUMBERS) draft[name] = $(name).value;
  saveDraft(draft);
  for (const name of NUMBERS) $(name).removeAttribute("aria-invalid");
  refresh();
}

/** Say what the form holds: how much text, and what differs from the model's own settings. */
function refresh() {
  const set = NUMBERS.filter((name) => $(name).value !== "");
  $("chosen").textContent = set.map((name) => `${name.replace("_", " ")} ${$(name).value}`).join(", ") || "as the model likes them";
  $("reset").hidden = !set.length;
  const defaults = model?.sampling[chosenVoice() ?? ""] ?? {};
  for (const [name, value] of Object.entries(defaults)) $(name).placeholder = value;
  count();
}

function count() {
  const [length, most] = [[...$("text").value].length, model?.max_text];
  $("count").textContent = most ? `${length.toLocaleString("en")} of ${most.toLocaleString("en")} characters` : "";
  $("count").classList.toggle("over", length > most);
}

// ------------------------------------------------------------------------------------------------------------ beginning

/** Ask the server what it speaks, and build the choices from that. */
async function describe() {
  try {
    model = await get("playground", key);
  } catch (error) {
    return refuse(error);
  }
  $("key-form").hidden = true;
  $("model").textContent = model.name;
  const draft = loadDraft();
  const voice = model.voices.includes(draft.voice) ? draft.voice : model.default_voice;
  $("voices").replaceChildren(...model.voices.map((name) => voiceChoice(name, name === voice)));
  $("tags").replaceChildren(...model.tags.map(tagButton));
  $("voices-row").hidden = !model.voices.length;
  $("tags-row").hidden = !model.tags.length;
  refresh();
}

function voiceChoice(name, checked) {
  const label = document.createElement("label");
  label.append(Object.assign(document.createElement("input"), { type: "radio", name: "voice", value: name, checked }), span("", name));
  return label;
}

function tagButton(tag) {
  const button = Object.assign(document.createElement("button"), { type: "button", textContent: tag });
  button.setAttribute("aria-label", `Insert ${tag}`);
  button.addEventListener("click", () => insertTag(tag));
  return button;
}

function restore() {
  const draft = loadDraft();
  $("text").value = draft.text ?? GREETING;
  for (const name of NUMBERS) $(name).value = draft[name] ?? "";
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  speakNow();
});
$("form").addEventListener("input", edited);
$("stop").addEventListener("click", stop);
$("replay").addEventListener("click", () => replay(shown));
$("download").addEventListener("click", download);
$("reset").addEventListener("click", () => {
  for (const name of NUMBERS) $(name).value = "";
  edited();
});
$("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  saveKey((key = $("key").value));
  say("");
  await describe();
  if (model && $("key-form").hidden) {
    enter("idle", "Ready.");
    $("text").focus();
  }
});
addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) speakNow();
  if (event.key === "Escape") stop();
});

restore();
refresh();
describe();
