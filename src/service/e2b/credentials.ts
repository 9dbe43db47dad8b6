import { createHmac, timingSafeEqual } from "node:crypto";
import type { SandboxId } from "../../domain/ids.ts";
import type { TokenKey, TokenKeys } from "../../storage/token-keys.ts";

/** The use of a token: for the files and processes of a sandbox, or for its ports. */
export type CredentialUse = "envd" | "traffic";

/** A sandbox, and the key that signed its tokens; null: the present one. */
export interface CredentialOwner {
  readonly sandboxId: SandboxId;
  readonly keyId: string | null;
}

/**
 * Tokens of single sandboxes. They are derived from the secrets that sign the tokens of accounts, so they are stored nowhere,
 * and stay the same as long as the key exists.
 */
export interface SandboxCredentials {
  /** The token of a sandbox for a use. */
  token(use: CredentialUse, owner: CredentialOwner): Promise<string>;
  /** Whether `token` is the one of the sandbox for that use. */
  isToken(token: string, use: CredentialUse, owner: CredentialOwner): Promise<boolean>;
  /** The id of the key that signs the tokens of a new sandbox. */
  keyId(): Promise<string>;
}

const ALPHABET = "abcdefghijklmnopqrstuvwxyz234567";

export function sandboxCredentials(keys: Pick<TokenKeys, "signing" | "find">): SandboxCredentials {
  const keyOf = async ({ keyId }: CredentialOwner): Promise<TokenKey> =>
    (keyId === null ? null : await keys.find(keyId)) ?? (await keys.signing());
  const token = async (use: CredentialUse, owner: CredentialOwner) => signed(await keyOf(owner), use, owner.sandboxId);
  return {
    token,
    async isToken(candidate, use, owner) {
      const [given, expected] = [Buffer.from(candidate), Buffer.from(await token(use, owner))];
      return given.byteLength === expected.byteLength && timingSafeEqual(given, expected);
    },
    keyId: async () => (await keys.signing()).id,
  };
}

function signed({ secret }: TokenKey, use: CredentialUse, id: SandboxId): string {
  return base32(createHmac("sha256", secret).update(`e2b-${use}:${id}`).digest());
}

/** Without padding, in lower case. */
function base32(bytes: Uint8Array): string {
  let [text, bits, value] = ["", 0, 0];
  for (const byte of bytes) {
    value = ((value << 8) | byte) & 0xfff;
    for (bits += 8; bits >= 5; bits -= 5) text += ALPHABET[(value >> (bits - 5)) & 31];
  }
  return bits === 0 ? text : text + ALPHABET[(value << (5 - bits)) & 31];
}
