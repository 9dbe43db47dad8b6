/*
 * POSIX ACLs as the kernel stores them in an extended attribute: u32 version, then entries of u16 tag, u16 permissions and
 * u32 id. Byte strings have one character per byte.
 */
const TAGS = { owner: 1, user: 2, owningGroup: 4, group: 8, mask: 16, other: 32 } as const;
const NO_ID = 0xffff_ffff;
const VERSION_BYTES = 4;
const ENTRY_BYTES = 8;

interface AclEntry {
  readonly tag: number;
  readonly permissions: number;
  readonly id: number;
}

/** An ACL with one named user, which therefore has a mask. */
export function namedUserAcl(mode: number, user: { readonly uid: number; readonly permissions: number }): string {
  return encode([
    { tag: TAGS.owner, permissions: (mode >> 6) & 7, id: NO_ID },
    { tag: TAGS.user, permissions: user.permissions, id: user.uid },
    { tag: TAGS.owningGroup, permissions: 5, id: NO_ID },
    { tag: TAGS.mask, permissions: (mode >> 3) & 7, id: NO_ID },
    { tag: TAGS.other, permissions: mode & 7, id: NO_ID },
  ]);
}

/** The bits of a mode correspond to three entries of the ACL. */
export const aclOfMode = {
  modeOf(acl: string): number {
    const bits = { [TAGS.owner]: 6, [TAGS.mask]: 3, [TAGS.other]: 0 } as Record<number, number>;
    return decode(acl).reduce(
      (mode, { tag, permissions }) => mode | (tag in bits ? permissions << (bits[tag] ?? 0) : 0),
      0,
    );
  },
  withMode(acl: string, mode: number): string {
    return encode(decode(acl).map((entry) => ({ ...entry, permissions: bitsFor(entry, mode) ?? entry.permissions })));
  },
};

/** The ACL that a new entry inherits: the directory's default ACL, restricted to the mode of the new entry. */
export function inheritedAcl(acl: string, mode: number): { acl: string; mode: number } {
  const entries = decode(acl).map((entry) => {
    const bits = bitsFor(entry, mode);
    return bits === null ? entry : { ...entry, permissions: entry.permissions & bits };
  });
  const encoded = encode(entries);
  return { acl: encoded, mode: (mode & ~0o777) | aclOfMode.modeOf(encoded) };
}

function bitsFor({ tag }: AclEntry, mode: number): number | null {
  if (tag === TAGS.owner) return (mode >> 6) & 7;
  if (tag === TAGS.mask) return (mode >> 3) & 7;
  return tag === TAGS.other ? mode & 7 : null;
}

function decode(acl: string): AclEntry[] {
  const bytes = Buffer.from(acl, "latin1");
  return Array.from({ length: (bytes.length - VERSION_BYTES) / ENTRY_BYTES }, (_, at) => {
    const start = VERSION_BYTES + at * ENTRY_BYTES;
    const [tag, permissions, id] = [
      bytes.readUInt16LE(start),
      bytes.readUInt16LE(start + 2),
      bytes.readUInt32LE(start + 4),
    ];
    return { tag, permissions, id };
  });
}

function encode(entries: readonly AclEntry[]): string {
  const bytes = Buffer.alloc(VERSION_BYTES + entries.length * ENTRY_BYTES);
  bytes.writeUInt32LE(2, 0);
  for (const [at, { tag, permissions, id }] of entries.entries()) {
    const start = VERSION_BYTES + at * ENTRY_BYTES;
    bytes.writeUInt16LE(tag, start);
    bytes.writeUInt16LE(permissions, start + 2);
    bytes.writeUInt32LE(id, start + 4);
  }
  return bytes.toString("latin1");
}
