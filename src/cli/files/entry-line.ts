import type { GuestEntry } from "../../client/types.ts";

const LETTERS: Readonly<Record<GuestEntry["type"], string>> = {
  file: "-",
  directory: "d",
  symlink: "l",
  block: "b",
  char: "c",
  fifo: "p",
  socket: "s",
};

/** A line as `ls -l` prints it: mode, links, owner, group, size, time, name, and the target of a symlink. */
export function entryLine(entry: GuestEntry): string {
  const { links, uid, gid, user = uid, group = gid, size, mtime } = entry;
  const target = entry.symlink_to === undefined ? "" : ` -> ${escaped(entry.symlink_to)}`;
  const time = `${mtime.slice(0, 19)}Z`;
  return `${modeText(entry)} ${links} ${user} ${group} ${size} ${time} ${escaped(entry.name)}${target}\n`;
}

/** Type and mode in ten characters, including setuid, setgid and sticky. */
function modeText({ type, mode: text }: GuestEntry): string {
  const mode = Number.parseInt(text, 8);
  const triple = (shift: number, special: boolean, letter: string): string => {
    const execute = (mode & (1 << shift)) !== 0;
    const last = special ? (execute ? letter : letter.toUpperCase()) : execute ? "x" : "-";
    return `${mode & (4 << shift) ? "r" : "-"}${mode & (2 << shift) ? "w" : "-"}${last}`;
  };
  const [user, group] = [triple(6, (mode & 0o4000) !== 0, "s"), triple(3, (mode & 0o2000) !== 0, "s")];
  return `${LETTERS[type]}${user}${group}${triple(0, (mode & 0o1000) !== 0, "t")}`;
}

/** A name without characters that could drive a terminal. */
function escaped(name: string): string {
  return name
    .replaceAll("\\", "\\\\")
    .replaceAll(/[\p{Cc}\u2028\u2029]/gu, (char) =>
      [...Buffer.from(char, "utf8")].map((byte) => `\\${byte.toString(8).padStart(3, "0")}`).join(""),
    );
}
