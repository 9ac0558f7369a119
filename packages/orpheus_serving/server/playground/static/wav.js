// Samples to a WAV file.

/** A Blob of mono 16-bit PCM: 44 bytes of header, then the samples of `pieces` (Int16Array each) as they are. */
export function wavFile(pieces, sampleRate) {
  const bytes = pieces.reduce((sum, piece) => sum + piece.byteLength, 0);
  const view = new DataView(new ArrayBuffer(44));
  const ascii = (at, text) => [...text].forEach((letter, i) => view.setUint8(at + i, letter.charCodeAt(0)));
  ascii(0, "RIFF");
  view.setUint32(4, 36 + bytes, true);
  ascii(8, "WAVEfmt ");
  view.setUint32(16, 16, true); // size of the format chunk
  view.setUint16(20, 1, true); // PCM
  view.setUint16(22, 1, true); // channels
  view.setUint32(24, sampleRate, true);
  view.setUint32(28, sampleRate * 2, true); // bytes a second
  view.setUint16(32, 2, true); // bytes a sample
  view.setUint16(34, 16, true); // bits a sample
  ascii(36, "data");
  view.setUint32(40, bytes, true);
  return new Blob([view.buffer, ...pieces], { type: "audio/wav" });
}
