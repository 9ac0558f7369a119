// The jitter buffer on the audio thread, where a busy page cannot disturb it. One processor plays one utterance.

import { JitterBuffer } from "./jitter-buffer.js";

const REPORT_EVERY = 6; // portions of 128 samples: 32 ms at 24 kHz

class JitterBufferProcessor extends AudioWorkletProcessor {
  constructor({ processorOptions }) {
    super();
    this.buffer = new JitterBuffer(processorOptions.lead, sampleRate);
    this.portions = 0;
    this.port.onmessage = ({ data }) => this.buffer.receive(data);
  }

  process(_inputs, [[out]]) {
    const event = this.buffer.fill(out);
    const time = currentTime + out.length / sampleRate; // when what was played so far has left
    if (event || this.portions++ % REPORT_EVERY === 0) this.port.postMessage({ ...this.buffer.report, event, time });
    return event !== "finished" && event !== "stopped"; // then the node may be collected
  }
}

registerProcessor("jitter-buffer", JitterBufferProcessor);
