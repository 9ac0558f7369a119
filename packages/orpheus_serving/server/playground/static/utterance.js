// What was asked for and what came back: kept for the picture, the file and the replay.

const GATE = 0.01; // RMS of a window that counts as speech: -40 dB of full scale, as at the server
const WINDOW = 0.01; // seconds

export class Utterance {
  constructor(request, sampleRate) {
    this.request = request;
    this.sampleRate = sampleRate;
    this.pieces = []; // Int16Array
    this.length = 0; // samples
    this.levels = []; // loudest sample of each window, 0 .. 1
    this.firstSpeech = null; // sample where the first window that is loud enough begins
    this.measured = {}; // seconds to the first byte and speech, real-time factor, underruns: of when it was spoken
    this.broken = false;
    this.window = Math.round(WINDOW * sampleRate);
    this.filled = 0; // samples of the last window
    this.peak = 0;
    this.power = 0;
  }

  get seconds() {
    return this.length / this.sampleRate;
  }

  push(samples) {
    this.pieces.push(samples);
    for (const sample of samples) {
      const value = Math.abs(sample) / 32768;
      this.peak = Math.max(this.peak, value);
      this.power += value * value;
      if (++this.filled === this.window) this.closeWindow();
    }
    this.length += samples.length;
  }

  closeWindow() {
    if (this.firstSpeech === null && this.power / this.window > GATE * GATE) this.firstSpeech = this.levels.length * this.window;
    this.levels.push(this.peak);
    this.filled = this.peak = this.power = 0;
  }

  /** The loudest sample between two positions, 0 .. 1. */
  loudest(from, to) {
    const last = Math.min(this.levels.length, Math.ceil(to / this.window));
    let most = 0;
    for (let i = Math.floor(from / this.window); i < last; i++) most = Math.max(most, this.levels[i]);
    return most;
  }
}
