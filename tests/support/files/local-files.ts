import {
  chmodSync,
  chownSync,
  closeSync,
  constants,
  ftruncateSync,
  lstatSync,
  mkdirSync,
  openSync,
  renameSync,
  statSync,
  writeSync,
} from "node:fs";

/** Writes a file as the guest does. */
export function writeLocally(
  path: Buffer,
  bytes: Uint8Array,
  { parents, form, mode }: { readonly parents: boolean; readonly form: string; readonly mode: string | undefined },
): void {
  if (parents) makeParents(path);
  const bits = mode === undefined ? undefined : Number.parseInt(mode, 8);
  const existing = lstatSync(path, { throwIfNoEntry: false });
  if (form === "atomic") {
    if (existing?.isDirectory()) throw new Error("it is a directory");
    const temporary = Buffer.concat([path.subarray(0, path.lastIndexOf("/") + 1), Buffer.from(".local-temporary")]);
    writeLocally(temporary, bytes, { parents: false, form: "in place", mode });
    if (existing?.isFile()) {
      chownSync(temporary, existing.uid, existing.gid);
      chmodSync(temporary, bits ?? existing.mode & 0o7777);
    }
    renameSync(temporary, path);
    return;
  }
  const { O_APPEND, O_CREAT, O_EXCL, O_WRONLY } = constants;
  const flags = O_WRONLY | (form === "append" ? O_APPEND : 0);
  // In a sticky directory the kernel may refuse O_CREAT for a file of another user, even to root.
  const isThere = form !== "exclusive" && statSync(path, { throwIfNoEntry: false }) !== undefined;
  const making = O_CREAT | (form === "exclusive" ? O_EXCL : 0);
  const fd = openSync(path, isThere ? flags : flags | making, 0o644);
  try {
    if (bits !== undefined) chmodSync(path, bits);
    if (form !== "append") ftruncateSync(fd, 0);
    writeSync(fd, bytes);
  } finally {
    closeSync(fd);
  }
}

/** Makes the directories above a path. */
export function makeParents(path: Buffer): void {
  mkdirSync(path.subarray(0, path.lastIndexOf("/")), { recursive: true });
}
