// The audio thread: a queue of samples in front of the loudspeaker (an AudioWorkletProcessor, one for each utterance).
//
//   samples -> queue -> [wait until `lead` samples are there, or the end] -> loudspeaker
//
// A queue that runs dry before the end is an underrun: the sound fades out, and playback waits for twice as much as before,
// so that one slow stretch makes one pause instead of many. Nothing is dropped: after a pause it goes on where it stopped.

const REPORT_EVERY = 6; // quanta of 128 samples: 32 ms at 24 kHz
const LONGEST_LEAD = 0.6; // seconds

class JitterBuffer extends AudioWorkletProcessor {
  constructor({ processorOptions }) {
    super();
    this.lead = Math.round(processorOptions.lead * sampleRate);
    this.queue = []; // Int16Array pieces
    this.offset = 0; // samples of the first piece that were played
    this.level = 0; // samples in the queue
    this.played = 0;
    this.underruns = 0;
    this.waited = 0; // samples of silence that underruns put into the speech
    this.silence = 0; // of the pause that is going on: no underrun if nothing follows it
    this.started = false;
    this.waiting = true;
    this.ended = false; // no more samples will come
    this.stopping = false;
    this.quanta = 0;
    this.port.onmessage = ({ data }) => this.receive(data);
  }

  receive(data) {
    if (data.samples) {
      this.queue.push(data.samples);
      this.level += data.samples.length;
    }
    if (data.end) this.ended = true;
    if (data.stop) this.stopping = true;
  }

  process(_inputs, [[out]]) {
    if (this.stopping) {
      fadeOut(out, this.take(out));
      return this.finish("stopped");
    }
    if (this.waiting && (this.level >= this.lead || this.ended)) {
      this.resume(out);
    } else if (this.waiting) {
      if (this.started) this.silence += out.length;
    } else if (this.level < out.length && !this.ended) {
      this.pause(out);
    } else {
      this.take(out);
    }
    if (this.ended && !this.level) return this.finish("finished");
    if (this.quanta++ % REPORT_EVERY === 0) this.report("state");
    return true;
  }

  resume(out) {
    this.waiting = false;
    if (!this.started) {
      this.started = true;
      this.report("started");
      this.take(out);
    } else if (this.level) {
      this.underruns += 1;
      this.waited += this.silence;
      fadeIn(out, this.take(out));
    }
  }

  pause(out) {
    const left = this.take(out);
    fadeOut(out, left);
    this.waiting = true;
    this.silence = out.length - left;
    this.lead = Math.min(2 * this.lead, Math.round(LONGEST_LEAD * sampleRate));
  }

  /** Move samples from the queue to `out`; returns how many there were. */
  take(out) {
    let filled = 0;
    while (filled < out.length && this.queue.length) {
      const piece = this.queue[0];
      const count = Math.min(out.length - filled, piece.length - this.offset);
      for (let i = 0; i < count; i++) out[filled + i] = piece[this.offset + i] / 32768;
      filled += count;
      this.offset += count;
      if (this.offset === piece.length) {
        this.queue.shift();
        this.offset = 0;
      }
    }
    this.level -= filled;
    this.played += filled;
    return filled;
  }

  finish(how) {
    this.report(how);
    return false; // the node may be collected
  }

  report(what) {
    const { played, level, underruns, waited, waiting } = this;
    this.port.postMessage({ what, played, level, underruns, waited, waiting, time: currentTime });
  }
}

function fadeOut(out, count) {
  for (let i = 0; i < count; i++) out[i] *= 1 - (i + 1) / count;
}

function fadeIn(out, count) {
  for (let i = 0; i < count; i++) out[i] *= (i + 1) / count;
}

registerProcessor("jitter-buffer", JitterBuffer);
