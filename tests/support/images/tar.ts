/** One entry of an archive; names are bytes, in Buffers where they are not UTF-8. */
export interface TarEntry {
  readonly path: string | Buffer;
  readonly type?: "file" | "directory" | "symlink" | "hardlink" | "char" | "block" | "fifo";
  readonly mode?: number;
  readonly uid?: number;
  readonly gid?: number;
  /** `seconds` since the epoch */
  readonly mtime?: number;
  readonly content?: string | Uint8Array;
  /** of a symlink or hard link */
  readonly target?: string | Buffer;
  readonly device?: readonly [major: number, minor: number];
  readonly xattrs?: Readonly<Record<string, string | Uint8Array>>;
  /** further PAX records of the entry */
  readonly pax?: Readonly<Record<string, string | Uint8Array>>;
  /** size of the content in the header, in `bytes`; default is the true one */
  readonly claimedBytes?: number;
}

const BLOCK_BYTES = 512;
const NAME_FIELD_BYTES = 100;
const FLAGS = { file: "0", hardlink: "1", symlink: "2", char: "3", block: "4", directory: "5", fifo: "6" } as const;
const MTIME_DEFAULT_SECONDS = 1_700_000_000;

/** A POSIX archive, with GNU records for long names and PAX records for extended attributes. */
export function tar(entries: readonly TarEntry[]): Buffer {
  return Buffer.concat([...entries.flatMap(records), Buffer.alloc(2 * BLOCK_BYTES)]);
}

function records(entry: TarEntry): Buffer[] {
  const type = entry.type ?? "file";
  const path = Buffer.from(entry.path as string);
  const target = Buffer.from((entry.target ?? "") as string);
  const content = type === "file" ? Buffer.from((entry.content ?? "") as string) : Buffer.alloc(0);
  const parts: Buffer[] = [];
  const attributes = Object.entries(entry.xattrs ?? {}).map(([name, value]) => [`SCHILY.xattr.${name}`, value]);
  const pax = { ...Object.fromEntries(attributes), ...entry.pax };
  if (Object.keys(pax).length > 0) parts.push(...special("x", "PaxHeader", paxRecords(pax)));
  if (path.length > NAME_FIELD_BYTES) parts.push(...special("L", "././@LongLink", withNul(path)));
  if (target.length > NAME_FIELD_BYTES) parts.push(...special("K", "././@LongLink", withNul(target)));
  parts.push(
    header({ ...entry, flag: FLAGS[type], path, target, size: entry.claimedBytes ?? content.length }),
    padded(content),
  );
  return parts;
}

/** A record of any type, with content that need not fit it. */
export function special(flag: string, name: string, content: Buffer): Buffer[] {
  return [header({ flag, path: Buffer.from(name), target: Buffer.alloc(0), size: content.length }), padded(content)];
}

const withNul = (bytes: Buffer): Buffer => Buffer.concat([bytes, Buffer.alloc(1)]);

function padded(content: Buffer): Buffer {
  return Buffer.concat([content, Buffer.alloc((BLOCK_BYTES - (content.length % BLOCK_BYTES)) % BLOCK_BYTES)]);
}

/** Each record begins with its own length, including the digits. */
export function paxRecords(fields: Readonly<Record<string, string | Uint8Array>>): Buffer {
  return Buffer.concat(
    Object.entries(fields).map(([name, value]) => {
      const rest = Buffer.concat([Buffer.from(` ${name}=`), Buffer.from(value as string), Buffer.from("\n")]);
      let length = rest.length + 1;
      while (String(length).length + rest.length !== length) length = String(length).length + rest.length;
      return Buffer.concat([Buffer.from(String(length)), rest]);
    }),
  );
}

function header(
  entry: Omit<TarEntry, "path" | "target" | "type"> & { flag: string; path: Buffer; target: Buffer; size: number },
): Buffer {
  const block = Buffer.alloc(BLOCK_BYTES);
  entry.path.copy(block, 0, 0, Math.min(entry.path.length, NAME_FIELD_BYTES));
  number(block, 100, 8, entry.mode ?? (entry.flag === FLAGS.directory ? 0o755 : 0o644));
  number(block, 108, 8, entry.uid ?? 0);
  number(block, 116, 8, entry.gid ?? 0);
  number(block, 124, 12, entry.size);
  number(block, 136, 12, entry.mtime ?? MTIME_DEFAULT_SECONDS);
  block.write(entry.flag, 156, "latin1");
  entry.target.copy(block, 157, 0, Math.min(entry.target.length, NAME_FIELD_BYTES));
  block.write("ustar\x0000", 257, "latin1");
  number(block, 329, 8, entry.device?.[0] ?? 0);
  number(block, 337, 8, entry.device?.[1] ?? 0);
  block.fill(" ", 148, 156);
  const sum = block.reduce((total, byte) => total + byte, 0);
  block.write(`${sum.toString(8).padStart(6, "0")}\0 `, 148, "latin1");
  return block;
}

/** Octal digits, or GNU's binary form where they do not fit. */
function number(block: Buffer, offset: number, length: number, value: number): void {
  const digits = value.toString(8);
  if (value >= 0 && digits.length < length) {
    block.write(`${digits.padStart(length - 1, "0")}\0`, offset, "latin1");
    return;
  }
  block.fill(value < 0 ? 0xff : 0, offset, offset + length);
  block.writeBigInt64BE(BigInt(value), offset + length - 8);
  if (value >= 0) block[offset] = 0x80 | (block[offset] ?? 0);
}
