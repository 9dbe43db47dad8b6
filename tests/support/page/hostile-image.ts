import { deflateSync } from "node:zlib";
import { busyboxImage, pushImage } from "../images/images.ts";
import type { TarEntry } from "../images/tar.ts";
import type { PageScene } from "./scene.ts";

export const MANY_COUNT = 100_000;
export const LONG_LINE_BYTES = 1_048_576;
export const SPARSE_BYTES = 1_073_741_824;
/** A name of bytes that are not UTF-8. */
export const RAW_NAME = Buffer.from([0x72, 0xff, 0x77]);
export const MARKUP_NAME = '<img src=x onerror="alert(1)">.txt';
export const BIDI_NAME = "safe\u202etxt.exe";
export const LOG_LINES = 60_000;

function chunk(type: string, content: Uint8Array): Buffer {
  const body = Buffer.concat([Buffer.from(type), content]);
  const frame = Buffer.alloc(8);
  frame.writeUInt32BE(content.byteLength);
  frame.writeUInt32BE(Bun.hash.crc32(body), 4);
  return Buffer.concat([frame.subarray(0, 4), body, frame.subarray(4)]);
}

/** A picture of one bit per pixel. @param claimed sides in its header */
export function png(side: number, claimed = side): Buffer {
  const header = Buffer.from([0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
  header.writeUInt32BE(claimed);
  header.writeUInt32BE(claimed, 4);
  const row = Buffer.alloc(1 + Math.ceil(side / 8), 0xa5);
  row[0] = 0;
  const rows = Buffer.concat(Array<Buffer>(side).fill(row));
  const parts = [chunk("IHDR", header), chunk("IDAT", deflateSync(rows)), chunk("IEND", Buffer.alloc(0))];
  return Buffer.concat([Buffer.from("\x89PNG\r\n\x1a\n", "latin1"), ...parts]);
}

const PYTHON = `#!/usr/bin/env python3
"""Counts words."""
import sys

def count(path: str) -> int:
    # One word for each run of letters.
    with open(path) as file:
        return sum(len(line.split()) for line in file)

if __name__ == "__main__":
    print(count(sys.argv[1]), 42, "words")
`;

const ENTRIES: readonly TarEntry[] = [
  { path: "srv/", type: "directory" },
  { path: "srv/words.py", mode: 0o755, content: PYTHON },
  { path: "srv/link", type: "symlink", target: "words.py" },
  { path: "srv/away", type: "symlink", target: "/no/<b>where</b>" },
  { path: "srv/fifo", type: "fifo" },
  { path: "srv/gone", content: "this goes\n" },
  { path: "srv/empty", content: "" },
  { path: `srv/${MARKUP_NAME}`, content: "<script>document.title='owned'</script>\n<b>bold</b>\n" },
  { path: `srv/${BIDI_NAME}`, content: "a\u202eb\u0007\u001b[31mred\n" },
  { path: "srv/new\nline", content: "n\n" },
  { path: Buffer.concat([Buffer.from("srv/"), RAW_NAME]), content: "raw name\n" },
  { path: "srv/latin", content: Buffer.from("caf\xe9 cr\xe8me\nplain\n", "latin1") },
  { path: "srv/wide", content: Buffer.from("\ufeffgr\u00fcn\nzwei\n", "utf16le") },
  { path: "srv/long", content: `first\n${"x".repeat(LONG_LINE_BYTES)}needle\nlast\n` },
  {
    path: "srv/log",
    content: Array.from({ length: LOG_LINES }, (_, at) => `line ${at + 1} of the log is here`).join("\n"),
  },
  { path: "srv/picture.png", content: png(64) },
  { path: "srv/bomb.png", content: png(8, 50_000) },
  { path: "srv/broken.png", content: png(64).subarray(0, 60) },
  { path: "srv/drawing.svg", content: '<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>\n' },
  { path: "srv/page.html", content: "<!doctype html><title>x</title><script>alert(1)</script>\n" },
  { path: "srv/binary", content: Buffer.from(Array.from({ length: 5000 }, (_, at) => at % 256)) },
];

export interface HostileImage {
  readonly base: string;
  /** the image of a run on it */
  readonly changed: string;
}

/** An image with names and contents that break pages, and another that a command made from it. */
export async function hostileImage({ appliance, registry }: PageScene): Promise<HostileImage> {
  const { layers } = await busyboxImage();
  const many = Array.from({ length: MANY_COUNT }, (_, at) => ({
    path: `srv/many/entry-${String(at).padStart(6, "0")}`,
    content: "",
  }));
  const entries: TarEntry[] = [...ENTRIES, { path: "srv/many/", type: "directory" }, ...many];
  const base = await appliance.importImage(
    await pushImage(registry, "hostile:1", { layers: [...layers, entries] }),
    "hostile",
  );
  const command = [
    "cd /srv",
    "sed -i 's/42/43/; s/Counts words/Counts all words/' words.py",
    "chmod 4750 empty && chown 7:8 empty",
    "ln -sfn long link",
    "rm gone",
    "mkdir -p deep/er/est && echo new > deep/er/est/file && echo more > deep/er/est/more",
    `truncate -s ${SPARSE_BYTES} sparse && printf end | dd of=sparse bs=1 seek=${SPARSE_BYTES - 3} conv=notrunc 2>/dev/null`,
  ].join("; ");
  const { status, result } = await appliance.run(base, command);
  if (status !== "SUCCESS") throw new Error(`the run ended ${status}: ${JSON.stringify(result)}`);
  return { base, changed: (result as unknown as { image: string }).image };
}
