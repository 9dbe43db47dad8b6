import { chmod, chown, link, mkdir, rm } from "node:fs/promises";
import { join } from "node:path";
import type { Disk } from "../vmm.ts";

const SERIAL = /^[A-Z0-9]{1,20}$/;

/** A directory that belongs to root: the VMM can reach what is placed there, and make nothing. */
export async function privateDirectory(stack: AsyncDisposableStack, path: string, gid: number): Promise<string> {
  await mkdir(path, { mode: 0o710 });
  stack.defer(() => rm(path, { recursive: true, force: true }));
  await chown(path, 0, gid);
  // The umask of a service is strict.
  await chmod(path, 0o710);
  return path;
}

/** Makes a disk visible to a machine's VMM as /vm/<serial>. */
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

/** Text of a guest or a VMM for a log: line ends stay, other control characters do not. */
export function printable(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what is replaced.
  return text.replaceAll("\r", "").replace(/[\x00-\x09\x0b-\x1f\x7f-\x9f]/g, "?");
}
