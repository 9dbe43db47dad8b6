/**
 * Extracts the ELF kernel from a bzImage: `bun extract-vmlinux.ts BZIMAGE VMLINUX`. The header fields are those of the x86
 * boot protocol. The payload is an LZ4 legacy frame, followed by its decompressed size.
 */
import { readFileSync, writeFileSync } from "node:fs";

const SETUP_SECTS_OFFSET = 0x1f1;
const MAGIC_OFFSET = 0x202;
const PAYLOAD_OFFSET_OFFSET = 0x248;
const PAYLOAD_LENGTH_OFFSET = 0x24c;
const SECTOR_BYTES = 512;
const LZ4_LEGACY_MAGIC = 0x184c2102;
const ELF_MAGIC = 0x464c457f;

/** Reads an LZ4 length: 15 in the token means that more bytes follow, up to and including the first below 255. */
function readLength(input: Uint8Array, at: number, nibble: number): [length: number, at: number] {
  let length = nibble;
  let next = at;
  if (nibble !== 15) return [length, next];
  for (;;) {
    const byte = input[next++];
    if (byte === undefined) throw new Error("LZ4 block ends inside a length");
    length += byte;
    if (byte !== 255) return [length, next];
  }
}

/** Decodes one LZ4 block to `output` at `start`. Returns the position after the last written byte. */
function decodeBlock(input: Uint8Array, output: Uint8Array, start: number): number {
  let at = 0;
  let out = start;
  while (at < input.length) {
    const token = input[at++] ?? 0;
    const [literals, literalsAt] = readLength(input, at, token >> 4);
    if (literalsAt + literals > input.length || out + literals > output.length) throw new Error("LZ4 literals overrun");
    output.set(input.subarray(literalsAt, literalsAt + literals), out);
    at = literalsAt + literals;
    out += literals;
    if (at === input.length) break;
    const distance = (input[at] ?? 0) | ((input[at + 1] ?? 0) << 8);
    const [extra, afterMatch] = readLength(input, at + 2, token & 15);
    const length = extra + 4;
    at = afterMatch;
    if (distance === 0 || out - distance < start || out + length > output.length) throw new Error("LZ4 match overrun");
    // Source and target overlap when distance < length; the bytes must be copied one by one.
    for (let i = 0; i < length; i++, out++) output[out] = output[out - distance] ?? 0;
  }
  return out;
}

function extract(image: Uint8Array): Uint8Array {
  const view = new DataView(image.buffer, image.byteOffset, image.byteLength);
  if (view.getUint32(MAGIC_OFFSET, true) !== 0x53726448) throw new Error("not a bzImage");
  const start = (view.getUint8(SETUP_SECTS_OFFSET) + 1) * SECTOR_BYTES + view.getUint32(PAYLOAD_OFFSET_OFFSET, true);
  const end = start + view.getUint32(PAYLOAD_LENGTH_OFFSET, true) - 4;
  if (view.getUint32(start, true) !== LZ4_LEGACY_MAGIC) throw new Error("the kernel is not compressed with LZ4");
  const output = new Uint8Array(view.getUint32(end, true));
  let at = start + 4;
  let out = 0;
  while (at < end) {
    const blockBytes = view.getUint32(at, true);
    if (at + 4 + blockBytes > end) throw new Error("LZ4 block overruns the payload");
    out = decodeBlock(image.subarray(at + 4, at + 4 + blockBytes), output, out);
    at += 4 + blockBytes;
  }
  if (out !== output.length) throw new Error(`kernel has ${out} bytes, its trailer says ${output.length}`);
  if (new DataView(output.buffer).getUint32(0, true) !== ELF_MAGIC) throw new Error("the payload is not an ELF file");
  return output;
}

const [source, target] = Bun.argv.slice(2);
if (source === undefined || target === undefined) throw new Error("usage: extract-vmlinux.ts BZIMAGE VMLINUX");
writeFileSync(target, extract(readFileSync(source)));
