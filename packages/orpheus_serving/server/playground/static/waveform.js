// The picture: seven strings, which tremble until the first sound is there; then bars for what was received, coloured up to
// where it is heard. The distance between the two colours is what the buffer holds.

const BAR = 3; // pixels
const GAP = 2;
const SHORTEST = 6; // seconds across the whole width; longer speech is squeezed in
const STRINGS = 7;

const still = matchMedia("(prefers-reduced-motion: reduce)");

export class Waveform {
  constructor(canvas) {
    this.canvas = canvas;
    this.utterance = null;
    this.position = 0;
    this.waiting = false;
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  /** Show an utterance with the playhead at a sample; `waiting` for its first sound. */
  show(utterance, position, waiting) {
    Object.assign(this, { utterance, position, waiting });
    this.draw();
  }

  draw() {
    const { canvas, utterance, position, waiting } = this;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    const pen = cleared(canvas, width, height);
    const style = getComputedStyle(canvas);
    const colour = (name) => style.getPropertyValue(name);
    drawStrings(pen, width, height, colour("--string"), waiting && !still.matches ? performance.now() / 1000 : null);
    if (utterance?.length) drawBars(pen, width, height, utterance, position, colour);
  }
}

/** A pen in CSS pixels on an empty canvas as sharp as the screen. */
function cleared(canvas, width, height) {
  const scale = devicePixelRatio || 1;
  const [wide, high] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== wide || canvas.height !== high) Object.assign(canvas, { width: wide, height: high });
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  return pen;
}

function drawBars(pen, width, height, utterance, position, colour) {
  const bars = Math.floor(width / (BAR + GAP));
  const perBar = Math.max(SHORTEST * utterance.sampleRate, utterance.length) / bars; // samples
  const head = position / perBar;
  const [heard, received] = [new Path2D(), new Path2D()];
  for (let bar = 0; bar < bars && bar * perBar < utterance.length; bar++) {
    const level = utterance.loudest(bar * perBar, (bar + 1) * perBar);
    const tall = Math.max(BAR, Math.sqrt(level) * (height - 8)); // the root shows soft sounds too
    (bar < head ? heard : received).roundRect(bar * (BAR + GAP), (height - tall) / 2, BAR, tall, BAR / 2);
  }
  pen.fillStyle = colour("--heard");
  pen.fill(heard);
  pen.fillStyle = colour("--received");
  pen.fill(received);
  if (position > 0 && position < utterance.length) {
    pen.fillStyle = colour("--head");
    pen.fillRect(head * (BAR + GAP) - 1, 0, 2, height);
  }
}

/** Thick to thin, from the top, fading out at both ends. A time makes them tremble, each at its own rate. */
function drawStrings(pen, width, height, colour, time) {
  const fading = pen.createLinearGradient(0, 0, width, 0);
  for (const at of [0, 1]) fading.addColorStop(at, `${colour}00`);
  for (const at of [0.12, 0.88]) fading.addColorStop(at, colour);
  pen.strokeStyle = fading;
  for (let string = 0; string < STRINGS; string++) {
    const y = ((string + 0.5) * height) / STRINGS;
    pen.lineWidth = 2 - 0.2 * string;
    pen.beginPath();
    for (let x = 0; x <= width; x += 8) {
      const sway = time === null ? 0 : Math.sin((Math.PI * x) / width) * Math.sin((9 + 2 * string) * time + string);
      pen.lineTo(x, y + 3 * sway);
    }
    pen.stroke();
  }
}
