// Samples to the loudspeaker while they arrive: the page's side of the jitter buffer.

const LEAD = 0.12; // seconds that are waited for before the first sound: a frame of the codec and a half

let context = null; // one for the page: browsers allow few, and only after a gesture
let module = null;

/** Wake the audio device; resolves when a Player can be made. Call it from a key or a click, before anything that waits. */
export function openAudio(sampleRate) {
  if (!context) {
    context = new AudioContext({ sampleRate, latencyHint: "interactive" }); // the browser converts to the device's rate
    module = context.audioWorklet.addModule(new URL("jitter-buffer.js", import.meta.url));
  }
  context.resume(); // not awaited: where the browser refuses, the rest of the page goes on
  return module;
}

/** Plays one utterance. `onreport` gets every report of the jitter buffer; `over` resolves to "finished" or "stopped". */
export class Player {
  constructor(onreport) {
    this.last = { played: 0, underruns: 0, waited: 0, waiting: true, time: 0 };
    this.node = new AudioWorkletNode(context, "jitter-buffer", {
      numberOfInputs: 0,
      outputChannelCount: [1],
      processorOptions: { lead: LEAD },
    });
    this.over = new Promise((resolve) => {
      this.node.port.onmessage = ({ data }) => {
        this.last = data;
        onreport(data);
        if (data.what === "finished" || data.what === "stopped") {
          this.node.disconnect();
          resolve(data.what);
        }
      };
    });
    this.node.connect(context.destination);
  }

  push(samples) {
    this.node.port.postMessage({ samples });
  }

  /** Nothing more will come; what is there is played. */
  end() {
    this.node.port.postMessage({ end: true });
  }

  /** Be silent within a few milliseconds, without a click. */
  stop() {
    this.node.port.postMessage({ stop: true });
  }

  /** Samples that were played by now: the last report, and the time since. */
  get position() {
    const { played, level, waiting, time } = this.last;
    if (waiting) return played;
    return played + Math.min(level, Math.max(0, (context.currentTime - time) * context.sampleRate));
  }
}

/** Let the device sleep while nothing is played. */
export function restAudio() {
  context?.suspend();
}

/** Seconds from now until what is played at `time` of the audio clock is heard: negative where it was heard already. */
export function secondsUntilHeard(time) {
  return time - context.currentTime + (context.outputLatency || context.baseLatency || 0);
}
