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
  const flags = O_WRONLY | O_CREAT | (form === "append" ? O_APPEND : 0) | (form === "exclusive" ? O_EXCL : 0);
  const fd = openSync(path, flags, 0o644);
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
