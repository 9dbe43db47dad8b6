/** The facts in the first bytes of a picture. */
export interface PictureHeader {
  readonly type: "image/png" | "image/jpeg" | "image/gif" | "image/webp" | "image/bmp";
  readonly width: number;
  readonly height: number;
}

/** Type and size of a raster picture, read from its content; null for anything else. */
export function pictureHeader(bytes: Uint8Array): PictureHeader | null {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const header = png(view) ?? gif(view) ?? webp(view) ?? bmp(view) ?? jpeg(view);
  return header === null || header.width < 1 || header.height < 1 ? null : header;
}

function hasText(view: DataView, at: number, text: string): boolean {
  if (view.byteLength < at + text.length) return false;
  return [...text].every((character, index) => view.getUint8(at + index) === character.charCodeAt(0));
}

function png(view: DataView): PictureHeader | null {
  if (view.byteLength < 24 || !hasText(view, 0, "\x89PNG\r\n\x1a\n") || !hasText(view, 12, "IHDR")) return null;
  return { type: "image/png", width: view.getUint32(16), height: view.getUint32(20) };
}

function gif(view: DataView): PictureHeader | null {
  if (view.byteLength < 10 || !(hasText(view, 0, "GIF87a") || hasText(view, 0, "GIF89a"))) return null;
  if (view.byteLength < 13) return null;
  let at = 13 + colorTableBytes(view.getUint8(10));
  // Extensions: a label, and blocks up to an empty one.
  while (at + 2 <= view.byteLength && view.getUint8(at) === 0x21) {
    for (at += 2; at < view.byteLength && view.getUint8(at) !== 0; ) at += 1 + view.getUint8(at);
    at += 1;
  }
  if (at + 9 > view.byteLength || view.getUint8(at) !== 0x2c) return null;
  const word = (offset: number) => view.getUint16(offset, true);
  // Browsers enlarge the picture to its first frame, whatever the header says.
  const width = Math.max(word(6), word(at + 1) + word(at + 5));
  return { type: "image/gif", width, height: Math.max(word(8), word(at + 3) + word(at + 7)) };
}

/** Size of the colour table that the flags of a GIF declare, in `bytes`. */
function colorTableBytes(flags: number): number {
  return (flags & 0x80) === 0 ? 0 : 3 * 2 ** ((flags & 7) + 1);
}

function bmp(view: DataView): PictureHeader | null {
  if (view.byteLength < 26 || !hasText(view, 0, "BM") || view.getUint32(14, true) < 40) return null;
  // A negative height means that the first row is the top one.
  return { type: "image/bmp", width: view.getInt32(18, true), height: Math.abs(view.getInt32(22, true)) };
}

function webp(view: DataView): PictureHeader | null {
  if (view.byteLength < 30 || !hasText(view, 0, "RIFF") || !hasText(view, 8, "WEBP")) return null;
  const type = "image/webp";
  if (hasText(view, 12, "VP8X")) {
    const at = (offset: number) => view.getUint16(offset, true) + (view.getUint8(offset + 2) << 16) + 1;
    return { type, width: at(24), height: at(27) };
  }
  if (hasText(view, 12, "VP8L")) {
    const bits = view.getUint32(21, true);
    return { type, width: (bits & 0x3fff) + 1, height: ((bits >>> 14) & 0x3fff) + 1 };
  }
  if (!hasText(view, 12, "VP8 ")) return null;
  return { type, width: view.getUint16(26, true) & 0x3fff, height: view.getUint16(28, true) & 0x3fff };
}

/** Walks the markers until one begins a frame. */
function jpeg(view: DataView): PictureHeader | null {
  if (view.byteLength < 4 || view.getUint16(0) !== 0xffd8) return null;
  for (let at = 2; at + 9 <= view.byteLength; ) {
    const marker = view.getUint8(at + 1);
    if (view.getUint8(at) !== 0xff) return null;
    // A fill byte, or a marker without a length: the next marker follows.
    if (marker === 0xff || marker === 0x01 || (marker >= 0xd0 && marker <= 0xd7)) {
      at += marker === 0xff ? 1 : 2;
      continue;
    }
    // C4, C8 and CC lie in the range of frame markers, but begin no frame.
    if (marker >= 0xc0 && marker <= 0xcf && ![0xc4, 0xc8, 0xcc].includes(marker)) {
      return { type: "image/jpeg", width: view.getUint16(at + 7), height: view.getUint16(at + 5) };
    }
    // No marker, another picture, or data before any frame.
    if (marker === 0 || (marker >= 0xd8 && marker <= 0xda)) return null;
    at += 2 + Math.max(2, view.getUint16(at + 2));
  }
  return null;
}
