// What is seen of an utterance: the waveform, the numbers, and in words what is going on.

import { Waveform } from "./waveform.js";

const $ = (id) => document.getElementById(id);
const waveform = new Waveform($("waveform"));

/** The page does something else now. A screen reader reads `status` out when there is time. */
export function enter(state, status) {
  $("page").dataset.state = state;
  $("status").textContent = status;
  $("stop").setAttribute("aria-disabled", String(!["asking", "streaming", "playing"].includes(state)));
}

/** Something failed; "" takes it back. A screen reader reads it out at once. */
export function alertUser(message) {
  $("alert").hidden = !message;
  $("alert").textContent = message;
}

/** Show an utterance, played up to a sample; `what` is going on with it: "waiting", "playing" or nothing. */
export function show(utterance, position = utterance.length, what = "nothing") {
  const { length, sampleRate, measured } = utterance;
  waveform.show(utterance, position, what === "waiting");
  $("clock").textContent = what === "playing" ? `${(position / sampleRate).toFixed(1)} of ${utterance.seconds.toFixed(1)} s` : "";
  put("first-byte", measured.firstByte, seconds);
  put("first-speech", measured.firstSpeech, seconds);
  put("real-time-factor", measured.realTimeFactor, (value) => value.toFixed(2));
  put("underruns", measured.underruns, (count) => (count ? `${count} (${seconds(measured.waited)})` : "0"));
  $("replay").hidden = $("download").hidden = what !== "nothing" || !length;
  Object.assign($("waveform").dataset, { played: measured.played ?? 0, received: length }); // exact, for whoever measures the page
}

function put(id, value, format) {
  $(id).textContent = value === undefined ? "–" : format(value);
}

export function seconds(value) {
  return value < 0.9995 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(1)} s`;
}
