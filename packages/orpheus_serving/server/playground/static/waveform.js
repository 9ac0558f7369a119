// The picture: bars for what was received, coloured up to where it is heard. The distance between the two is the buffer.

const BAR = 3; // pixels
const GAP = 2;
const SHORTEST = 6; // seconds across the whole width; longer speech is squeezed in

export class Waveform {
  constructor(canvas) {
    this.canvas = canvas;
    this.utterance = null;
    this.position = 0;
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  /** Show an utterance with the playhead at a sample. */
  show(utterance, position) {
    this.utterance = utterance;
    this.position = position;
    this.draw();
  }

  draw() {
    const { canvas, utterance } = this;
    const scale = devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    if (!utterance) return;
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    const style = getComputedStyle(canvas);
    const colour = (name) => style.getPropertyValue(name);

    const bars = Math.floor(width / (BAR + GAP));
    const shown = Math.max(SHORTEST * utterance.sampleRate, utterance.length); // samples across the width
    const perBar = shown / bars;
    const head = utterance.length ? this.position / perBar : 0;
    for (let bar = 0; bar < bars && bar * perBar < utterance.length; bar++) {
      const level = loudest(utterance, bar * perBar, (bar + 1) * perBar);
      const tall = Math.max(BAR, Math.sqrt(level) * (height - 8)); // the root shows soft sounds too
      pen.fillStyle = colour(bar < head ? "--heard" : "--received");
      pen.beginPath();
      pen.roundRect(bar * (BAR + GAP), (height - tall) / 2, BAR, tall, BAR / 2);
      pen.fill();
    }
    if (this.position > 0 && this.position < utterance.length) {
      pen.fillStyle = colour("--head");
      pen.fillRect(head * (BAR + GAP) - 1, 0, 2, height);
    }
  }
}

function loudest({ levels, window }, from, to) {
  const last = Math.min(levels.length, Math.ceil(to / window));
  let most = 0;
  for (let i = Math.floor(from / window); i < last; i++) most = Math.max(most, levels[i]);
  return most;
}
