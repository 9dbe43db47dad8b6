import { type ByteString, byteStringToBytes, displayName, isUtf8 } from "../../domain/tree/guest-path.ts";
import type { Entry } from "../../domain/tree/listing.ts";

/** A line in the style of `ls -l`: mode, links, owner, group, size, time, name, and the target of a symlink. */
export function listingLine(entry: Entry): string {
  const target = entry.type === "l" ? ` -> ${escapeName(entry.target)}` : "";
  const { nlink, uid, gid, size } = entry;
  return `${modeText(entry)} ${nlink} ${uid} ${gid} ${size} ${modifiedAt(entry)} ${escapeName(entry.name)}${target}\n`;
}

/** Largest time that a Date can hold, in `milliseconds`; a guest can set a larger one. */
const TIME_MS_MAX = 8_640_000_000_000_000;

let latest = { ms: 0, text: new Date(0).toISOString() };

/** Modification time of an entry, as ISO 8601 in UTC. */
export function modifiedAt(entry: Entry): string {
  const ms = entry.mtimeSeconds * 1000 + Math.floor(entry.mtimeNanoseconds / 1_000_000);
  // Files of one package have one time, and its text takes as long as the rest of an entry.
  if (latest.ms !== ms) {
    latest = { ms, text: new Date(Math.max(-TIME_MS_MAX, Math.min(ms, TIME_MS_MAX))).toISOString() };
  }
  return latest.text;
}

/** Type and mode in ten characters, as `ls` shows them, including setuid, setgid and sticky. */
function modeText(entry: Entry): string {
  const { mode } = entry;
  const type = entry.type === "f" ? "-" : entry.type;
  const triple = (shift: number, special: boolean, letter: string): string => {
    const read = mode & (4 << shift) ? "r" : "-";
    const write = mode & (2 << shift) ? "w" : "-";
    const execute = (mode & (1 << shift)) !== 0;
    if (special) return read + write + (execute ? letter : letter.toUpperCase());
    return read + write + (execute ? "x" : "-");
  };
  return (
    type +
    triple(6, (mode & 0o4000) !== 0, "s") +
    triple(3, (mode & 0o2000) !== 0, "s") +
    triple(0, (mode & 0o1000) !== 0, "t")
  );
}

/** Escapes control characters, and bytes that are not UTF-8, as `\ooo`, and doubles backslashes, so that it is unambiguous. */
function escapeName(name: ByteString): string {
  if (!isUtf8(name)) {
    return [...byteStringToBytes(name)]
      .map((byte) => (byte < 0x20 || byte >= 0x7f ? octal(byte) : byte === 0x5c ? "\\\\" : String.fromCharCode(byte)))
      .join("");
  }
  return (
    displayName(name)
      .replaceAll("\\", "\\\\")
      // biome-ignore lint/suspicious/noControlCharactersInRegex: a name must not drive the reader's terminal.
      .replaceAll(/[\x00-\x1f\x7f-\x9f\u2028\u2029]/g, (char) => [...Buffer.from(char, "utf8")].map(octal).join(""))
  );
}

function octal(byte: number): string {
  return `\\${byte.toString(8).padStart(3, "0")}`;
}
