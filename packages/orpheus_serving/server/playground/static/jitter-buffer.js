// A queue of samples in front of the loudspeaker, filled as the network likes and emptied as the loudspeaker needs.
//
//   receive({samples}) -> queue -> [wait until `lead` samples are there, or the end] -> fill(out)
//
// A queue that runs dry before the end is an underrun: the sound fades out, and playback waits for twice as much as before,
// so that one slow stretch makes one pause instead of many. Nothing is dropped: after a pause it goes on where it stopped.

const LONGEST_LEAD = 0.6; // seconds

export class JitterBuffer {
  constructor(lead, sampleRate) {
    this.lead = Math.round(lead * sampleRate);
    this.longestLead = Math.round(LONGEST_LEAD * sampleRate);
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
  }

  receive({ samples, end, stop }) {
    if (samples) {
      this.queue.push(samples);
      this.level += samples.length;
    }
    if (end) this.ended = true;
    if (stop) this.stopping = true;
  }

  /** Write the next samples into `out`, which is silent. Returns "started", "finished" or "stopped" when it comes to that. */
  fill(out) {
    if (this.stopping) {
      fadeOut(out, this.take(out));
      return "stopped";
    }
    const first = !this.started;
    if (this.waiting && (this.level >= this.lead || this.ended)) {
      this.resume(out);
    } else if (this.waiting) {
      this.silence += out.length;
    } else if (this.level < out.length && !this.ended) {
      this.pause(out);
    } else {
      this.take(out);
    }
    if (this.ended && !this.level) return "finished";
    return first && this.started ? "started" : null;
  }

  resume(out) {
    this.waiting = false;
    const filled = this.take(out);
    if (this.started && filled) {
      this.underruns += 1;
      this.waited += this.silence;
      fadeIn(out, filled);
    }
    this.started = true;
  }

  pause(out) {
    const left = this.take(out);
    fadeOut(out, left);
    this.waiting = true;
    this.silence = out.length - left;
    this.lead = Math.min(2 * this.lead, this.longestLead);
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

  /** Numbers for the page. */
  get report() {
    const { played, level, underruns, waited, waiting } = this;
    return { played, level, underruns, waited, waiting };
  }
}

function fadeOut(out, count) {
  for (let i = 0; i < count; i++) out[i] *= 1 - (i + 1) / count;
}

function fadeIn(out, count) {
  for (let i = 0; i < count; i++) out[i] *= (i + 1) / count;
}
