import type { ListingItem } from "../../../client/types.ts";

const TYPES: Readonly<Record<ListingItem["type"], string>> = {
  file: "-",
  directory: "d",
  symlink: "l",
  block: "b",
  char: "c",
  fifo: "p",
  socket: "s",
};

/** A type and mode as `ls` writes them: `drwxr-xr-x`. @param octal four digits */
export function modeText(type: ListingItem["type"], octal: string): string {
  const mode = Number.parseInt(octal, 8);
  const triple = (shift: number, special: number, mark: string): string => {
    const bits = (mode >> shift) & 7;
    const isSpecial = (mode & special) !== 0;
    const last = isSpecial ? ((bits & 1) === 1 ? mark : mark.toUpperCase()) : (bits & 1) === 1 ? "x" : "-";
    return `${(bits & 4) === 4 ? "r" : "-"}${(bits & 2) === 2 ? "w" : "-"}${last}`;
  };
  return `${TYPES[type]}${triple(6, 0o4000, "s")}${triple(3, 0o2000, "s")}${triple(0, 0o1000, "t")}`;
}
