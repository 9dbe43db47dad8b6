import { describe, expect, test } from "bun:test";
import { createSecretKey } from "node:crypto";
import { sandboxCredentials } from "../../../src/service/e2b/credentials.ts";
import { keyOfToken, tokenOfKey } from "../../../src/service/e2b/keys.ts";
import type { TokenKey } from "../../../src/storage/token-keys.ts";

const ID = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15" as never;
const OTHER = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c16" as never;
const key = (id: string, byte: number): TokenKey => ({
  id,
  secret: createSecretKey(Buffer.alloc(32, byte)),
  expiresAt: null,
});

/** Credentials whose newest key is the last. */
function credentialsOf(...keys: TokenKey[]) {
  return sandboxCredentials({
    signing: async () => keys.at(-1) as TokenKey,
    find: async (id) => keys.find((one) => one.id === id) ?? null,
  });
}

describe("a key", () => {
  test("is a token in hexadecimal digits, which the clients accept", () => {
    const spelled = keyOfToken("eyJ.a-_.b");
    expect(spelled).toMatch(/^e2b_[0-9a-f]+$/);
    expect(tokenOfKey(spelled)).toBe("eyJ.a-_.b");
  });

  test("may be the token itself", () => {
    for (const text of ["eyJ.a-_.b", "", "e2b_", "e2b_abc", "e2b_AB", "E2B_ab", "e2b_xy", " e2b_61"]) {
      expect(tokenOfKey(text)).toBe(text);
    }
  });

  test("is not decoded beyond its bound", () => {
    const long = `e2b_${"61".repeat(5000)}`;
    expect(tokenOfKey(long)).toBe(long);
  });
});

describe("a token of a sandbox", () => {
  const [old, present] = [key("old", 1), key("new", 2)];

  test("stays the same when the keys change", async () => {
    const owner = { sandboxId: ID, keyId: "old" };
    const token = await credentialsOf(old).token("envd", owner);
    expect(token).toMatch(/^[a-z2-7]{52}$/);
    expect(await credentialsOf(old, present).token("envd", owner)).toBe(token);
  });

  test("is made with the present key when its own is gone", async () => {
    const credentials = credentialsOf(present);
    const token = await credentials.token("envd", { sandboxId: ID, keyId: "old" });
    expect(token).toBe(await credentials.token("envd", { sandboxId: ID, keyId: null }));
    expect(await credentials.keyId()).toBe("new");
  });

  test("is good for one sandbox and one use", async () => {
    const credentials = credentialsOf(old);
    const owner = { sandboxId: ID, keyId: null };
    const token = await credentials.token("envd", owner);
    expect(await credentials.isToken(token, "envd", owner)).toBe(true);
    expect(await credentials.isToken(token, "traffic", owner)).toBe(false);
    expect(await credentials.isToken(token, "envd", { sandboxId: OTHER, keyId: null })).toBe(false);
    for (const wrong of ["", token.slice(1), `${token}a`, token.toUpperCase(), "é".repeat(26)]) {
      expect(await credentials.isToken(wrong, "envd", owner)).toBe(false);
    }
  });
});
