// Samples to the loudspeaker while they arrive: the page's side of the jitter buffer.

import { JitterBuffer } from "./jitter-buffer.js";

const LEAD = 0.12; // seconds that are waited for before the first sound: a frame of the codec and a half

let context = null; // one for the page: browsers allow few, and only after a gesture
let ready = null;

/** Wake the audio device; resolves when a Player can be made. Call it from a key or a click, before anything that waits. */
export function openAudio(sampleRate) {
  if (!context) {
    context = new AudioContext({ sampleRate, latencyHint: "interactive" }); // the browser converts to the device's rate
    ready = context.audioWorklet?.addModule(new URL("worklet.js", import.meta.url));
  }
  context.resume(); // not awaited: where the browser refuses, the rest of the page goes on
  return ready;
}

/** Let the device sleep while nothing is played. */
export function restAudio() {
  context?.suspend();
}

/** Plays one utterance. `onreport` gets every report of the jitter buffer; `over` resolves to "finished" or "stopped". */
export class Player {
  constructor(onreport) {
    this.last = { played: 0, level: 0, underruns: 0, waited: 0, waiting: true, time: 0 };
    this.over = new Promise((resolve) => {
      const heard = (report) => {
        this.last = report;
        onreport(report);
        if (report.event === "finished" || report.event === "stopped") {
          this.node.disconnect();
          resolve(report.event);
        }
      };
      [this.node, this.send] = context.audioWorklet ? workletNode(heard) : scriptNode(heard);
    });
    this.node.connect(context.destination);
  }

  push(samples) {
    this.send({ samples });
  }

  /** Nothing more will come; what is there is played. */
  end() {
    this.send({ end: true });
  }

  /** Be silent within a few milliseconds, without a click. */
  stop() {
    this.send({ stop: true });
  }

  /** Samples that were played by now: the last report, and the time since. */
  get position() {
    const { played, level, waiting, time } = this.last;
    if (waiting) return played;
    return played + Math.min(level, Math.max(0, (context.currentTime - time) * context.sampleRate));
  }
}

/** Seconds from now until what is played at `time` of the audio clock is heard: negative where it was heard already. */
export function secondsUntilHeard(time) {
  return time - context.currentTime + (context.outputLatency || context.baseLatency || 0);
}

/** A node, and a function that sends to its buffer. */
function workletNode(onreport) {
  const options = { numberOfInputs: 0, outputChannelCount: [1], processorOptions: { lead: LEAD } };
  const node = new AudioWorkletNode(context, "jitter-buffer", options);
  node.port.onmessage = ({ data }) => onreport(data);
  return [node, (message) => node.port.postMessage(message)];
}

/** The same on the page's own thread: over plain HTTP, other than from the machine itself, browsers offer no worklet. */
function scriptNode(onreport) {
  const buffer = new JitterBuffer(LEAD, context.sampleRate);
  const node = context.createScriptProcessor(1024, 0, 1);
  node.onaudioprocess = ({ outputBuffer, playbackTime }) => {
    const event = buffer.fill(outputBuffer.getChannelData(0));
    onreport({ ...buffer.report, event, time: playbackTime + outputBuffer.duration });
  };
  return [node, (message) => buffer.receive(message)];
}
