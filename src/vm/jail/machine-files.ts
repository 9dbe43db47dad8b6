import { chmod, chown, link, mkdir } from "node:fs/promises";
import { join } from "node:path";
import type { Disk } from "../vmm.ts";

const SERIAL = /^[A-Z0-9]{1,20}$/;

/** Makes a directory that belongs to root: the VMM can open the files in it, and cannot create any. */
export async function makePrivateDirectory(path: string, gid: number): Promise<void> {
  await mkdir(path, { mode: 0o710 });
  await chown(path, 0, gid);
  // mkdir applies the umask, which is strict in a service.
  await chmod(path, 0o710);
}

/** Makes a disk visible to a machine's VMM as /vm/<serial>. @throws Error for a bad serial or path */
export async function placeDisk(machine: { readonly directory: string; readonly uid: number }, disk: Disk) {
  if (!SERIAL.test(disk.serial)) throw new Error(`not a disk serial: ${JSON.stringify(disk.serial)}`);
  const path = join(machine.directory, disk.serial);
  if (disk.readOnly) {
    await link(disk.path, path);
    return;
  }
  if (disk.path !== path) throw new Error(`a writable disk must lie at ${path}`);
  await chown(path, machine.uid, machine.uid);
  await chmod(path, 0o600);
}

/** A text from a guest or a VMM; "" when the value is something else, which JSON can make so that it has no text. */
export function textOf(value: unknown): string {
  return typeof value === "string" ? value : "";
}

/** Text of a guest or a VMM for a log: replaces control characters, except line feeds. */
export function printable(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: it replaces control characters.
  return text.replaceAll("\r", "").replace(/[\x00-\x09\x0b-\x1f\x7f-\x9f]/g, "?");
}
