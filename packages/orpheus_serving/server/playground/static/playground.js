// The page. Read this file first.
//
//   form.js -> request -> speech.js -> Int16Array pieces -> player.js      heard
//                                                        -> utterance.js   kept: for the picture, the file, the replay
//                                                           stage.js       seen: waveform, numbers, status
//
// One utterance at a time: speaking, stopping and replaying each end the one that is on. What the page is doing stands in
// `data-state` of <main>: idle, asking, streaming, playing, done, stopped, broken, refused.

import { loadKey, saveKey } from "./drafts.js";
import { fillChoices, hasText, markWrong, restoreDraft, takeRequest } from "./form.js";
import { remember } from "./history.js";
import { Player, openAudio, restAudio, secondsUntilHeard } from "./player.js";
import { SpeechError, get, speak } from "./speech.js";
import { alertUser, enter, seconds, show } from "./stage.js";
import { Utterance } from "./utterance.js";
import { wavFile } from "./wav.js";

const $ = (id) => document.getElementById(id);
let model = null; // what the server says of itself
let key = loadKey();
let run = null; // what is on: {utterance, player, abort, asked, firstByte, lastByte}
let last = null; // the utterance on the stage

// ------------------------------------------------------------------------------------------------- speak, stop, replay

/** Ask for what the form says and play it while it arrives. */
async function speakNow() {
  stop();
  alertUser("");
  if (!model) await describe();
  if (!model) return;
  if (!hasText()) return refuse(new SpeechError("refused", "There is nothing to say yet.", { field: "input" }));
  const audio = openAudio(model.sample_rate);
  const mine = { utterance: new Utterance(takeRequest(), model.sample_rate), abort: new AbortController(), asked: performance.now() };
  const { utterance, abort } = mine;
  begin(mine, "asking", "Waiting for the first sound …");
  try {
    for await (const samples of speak(utterance.request, key, abort.signal)) {
      mine.lastByte = performance.now();
      if (!mine.player) {
        mine.firstByte = mine.lastByte;
        await audio;
        if (abort.signal.aborted) return;
        mine.player = new Player((report) => measure(mine, report));
        enter("streaming", "Speaking …");
      }
      utterance.push(samples);
      mine.player.push(samples);
    }
    if (!mine.player) throw new SpeechError("broken", "The server sent no sound.");
    enter("playing", "Speaking …");
  } catch (error) {
    if (abort.signal.aborted) return;
    if (!mine.player) return refuse(error);
    utterance.broken = true;
    enter("playing", "Speaking what is there …");
    alertUser(`${words(error)} What came before that is kept, ${seconds(utterance.seconds)} of it.`);
  }
  await playOut(mine);
}

async function replay(utterance) {
  stop();
  alertUser("");
  const mine = { utterance };
  begin(mine, "playing", "Playing again …");
  await openAudio(utterance.sampleRate);
  if (run !== mine) return;
  mine.player = new Player(() => {});
  utterance.pieces.forEach((piece) => mine.player.push(piece));
  await playOut(mine);
}

function begin(mine, state, status) {
  run = mine;
  last = mine.utterance;
  enter(state, status);
  $("waveform").scrollIntoView({ block: "nearest" }); // on a phone it lies below the buttons
  requestAnimationFrame(animate);
}

function animate() {
  if (!run) return;
  show(run.utterance, run.player?.position ?? 0, run.player ? "playing" : "waiting");
  requestAnimationFrame(animate);
}

/** Everything has been received: let it be heard to its end. */
async function playOut(mine) {
  remember(mine.utterance, replay);
  mine.player.end();
  await mine.player.over;
  if (run !== mine) return;
  run = null;
  restAudio();
  show(last);
  if (last.broken) enter("broken", `Broke off after ${seconds(last.seconds)}.`);
  else enter("done", `Done: ${seconds(last.seconds)} of speech.`);
}

/** Silence at once. Closing the connection also ends the work at the server. */
function stop() {
  if (!run) return;
  const { player, abort } = run;
  run = null;
  abort?.abort();
  player?.stop();
  player?.over.then(() => run ?? restAudio());
  const heard = player?.position ?? 0;
  if (last.length) remember(last, replay);
  show(last, heard);
  enter("stopped", player ? `Stopped after ${seconds(heard / last.sampleRate)}.` : "Stopped before the first sound.");
}

/** Numbers of a run, renewed at every report of its jitter buffer. */
function measure({ utterance, asked, firstByte, lastByte }, report) {
  const { measured, sampleRate, firstSpeech } = utterance;
  measured.firstByte = (firstByte - asked) / 1000;
  measured.realTimeFactor = (lastByte - asked) / 1000 / utterance.seconds;
  measured.underruns = report.underruns;
  measured.waited = report.waited / sampleRate;
  measured.played = report.played;
  if (measured.firstSpeech === undefined && firstSpeech !== null && report.played > firstSpeech) {
    const before = (report.played - firstSpeech) / sampleRate;
    measured.firstSpeech = (performance.now() - asked) / 1000 + secondsUntilHeard(report.time - before);
  }
}

// ---------------------------------------------------------------------------------------------------------- what failed

/** Nothing was spoken. */
function refuse(error) {
  run = null;
  if (last) show(last);
  enter("refused", "Not spoken.");
  if (error.kind === "key") return askForKey(words(error));
  alertUser(words(error));
  markWrong(error.field);
}

/** What went wrong, for a person. Anything but a SpeechError is a fault of this page: the console has the rest of it. */
function words(error) {
  if (error instanceof SpeechError) return error.message;
  console.error(error);
  return `This page failed: ${error.message}.`;
}

/** The field's own label says enough, unless a key was sent and the server has something to say about it. */
function askForKey(reason) {
  enter("refused", "A key is needed.");
  alertUser(key && `The key was not accepted: ${reason}.`);
  $("key-form").hidden = false;
  $("key").focus();
}

// ------------------------------------------------------------------------------------------------------------ beginning

/** Ask the server what it speaks, and offer that. */
async function describe() {
  try {
    model = await get("playground", key);
  } catch (error) {
    return refuse(error);
  }
  $("key-form").hidden = true;
  $("model").textContent = model.name;
  fillChoices(model);
}

function download() {
  const { voice, seed } = last.request;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(wavFile(last.pieces, last.sampleRate));
  link.download = `${voice ?? "speech"}-${seed}.wav`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  speakNow();
});
$("stop").addEventListener("click", stop);
$("replay").addEventListener("click", () => replay(last));
$("download").addEventListener("click", download);
$("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  saveKey((key = $("key").value));
  alertUser("");
  await describe();
  if (!$("key-form").hidden) return;
  enter("idle", "Ready.");
  $("text").focus();
});
addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault(); // on a button or in a field it would submit the form as well
    speakNow();
  }
  if (event.key === "Escape") stop();
});

restoreDraft();
describe();
