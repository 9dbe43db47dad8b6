import { describe, expect, test } from "bun:test";
import { createPrivateKey, generateKeyPairSync, sign } from "node:crypto";
import { chmod, mkdtemp, readdir, readFile, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Envelope, IN_TOTO_TYPE, signedBytes } from "../../../src/domain/receipts/envelope.ts";
import { NOT_PROVEN, PREDICATE_TYPE, STATEMENT_TYPE } from "../../../src/domain/receipts/statement.ts";
import { ReceiptKey } from "../../../src/storage/receipts/receipt-key.ts";
import { keyIdOf, parseKey, ReceiptError, verifyReceipt } from "../../../src/storage/receipts/verification.ts";

async function directory(): Promise<AsyncDisposable & { readonly path: string }> {
  const path = await mkdtemp(join(tmpdir(), "coppice-receipts-"));
  return { path, [Symbol.asyncDispose]: () => rm(path, { recursive: true, force: true }) };
}

const STATEMENT = {
  _type: STATEMENT_TYPE,
  subject: [{ name: "ü", digest: { sha256: "00" } }],
  predicateType: PREDICATE_TYPE,
  predicate: { buildDefinition: { internalParameters: { notProven: NOT_PROVEN } } },
};
const PAYLOAD = Buffer.from(JSON.stringify(STATEMENT));

/** The reason why a receipt is refused; null: it is accepted. */
function refusal(envelope: unknown, pem: string): string | null {
  try {
    verifyReceipt(typeof envelope === "string" ? envelope : JSON.stringify(envelope), parseKey(pem));
    return null;
  } catch (error) {
    if (error instanceof ReceiptError) return error.message;
    throw error;
  }
}

test("the signed bytes are those of the specification of DSSE, with lengths in bytes", () => {
  const bytes = signedBytes("http://example.com/HelloWorld", Buffer.from("hello world"));
  expect(bytes.toString()).toBe("DSSEv1 29 http://example.com/HelloWorld 11 hello world");
  expect(signedBytes("tybé", Buffer.from([0xff, 0x20])).toString("latin1")).toBe("DSSEv1 5 tyb\xc3\xa9 2 \xff ");
});

describe("the key of receipts", () => {
  test("is made once, for its owner only, and stays", async () => {
    await using at = await directory();
    const keys = new ReceiptKey(at.path);
    const ids = await Promise.all(Array.from({ length: 20 }, async () => (await keys.read()).id));
    expect(new Set(ids).size).toBe(1);
    expect(await readdir(at.path)).toEqual(["receipts.pem"]);
    expect((await stat(join(at.path, "receipts.pem"))).mode & 0o777).toBe(0o600);
    const { id, pem } = await new ReceiptKey(at.path).read();
    expect(id).toBe(ids[0] as string);
    expect(keyIdOf(parseKey(pem))).toBe(id);
    expect(createPrivateKey(await readFile(join(at.path, "receipts.pem"))).asymmetricKeyType).toBe("ed25519");
  });

  test("is not replaced when its file is damaged, and is read again when that is repaired", async () => {
    await using at = await directory();
    const path = join(at.path, "receipts.pem");
    await new ReceiptKey(at.path).read();
    const whole = await readFile(path);
    await writeFile(path, "damaged");
    const keys = new ReceiptKey(at.path);
    const outcome = await keys.read().then(
      () => "read",
      () => "failed",
    );
    expect([outcome, await readFile(path, "utf8")]).toEqual(["failed", "damaged"]);
    await writeFile(path, whole);
    await chmod(path, 0o600);
    expect((await keys.read()).pem).toContain("BEGIN PUBLIC KEY");
  });
});

describe("a receipt", () => {
  test("is verified by its key, from the bytes that are signed", async () => {
    await using at = await directory();
    const keys = new ReceiptKey(at.path);
    const envelope = await keys.sign(IN_TOTO_TYPE, PAYLOAD);
    const { pem, id } = await keys.read();
    expect(envelope).toMatchObject({ payloadType: IN_TOTO_TYPE, signatures: [{ keyid: id }] });
    expect(verifyReceipt(JSON.stringify(envelope), parseKey(pem)) as unknown).toEqual(STATEMENT);
    const urlSafe = (text: string) => text.replaceAll("+", "-").replaceAll("/", "_");
    const [signature] = envelope.signatures;
    const other = { ...envelope, signatures: [{ sig: urlSafe(signature?.sig ?? "") }] };
    expect(refusal(other, pem)).toBe(null);
    const second = { ...envelope, signatures: [{ keyid: id, sig: "AAAA" }, ...envelope.signatures] };
    expect(refusal(second, pem)).toBe(null);
  });

  test("is refused after any change, with another key, and when it is of another kind", async () => {
    await using at = await directory();
    const keys = new ReceiptKey(at.path);
    const { pem } = await keys.read();
    const envelope = await keys.sign(IN_TOTO_TYPE, PAYLOAD);
    const changed = Buffer.from(PAYLOAD.toString().replace('"00"', '"01"')).toString("base64");
    expect(refusal({ ...envelope, payload: changed }, pem)).toContain("no signature");
    expect(refusal({ ...envelope, signatures: [] }, pem)).toContain("no signature");
    const otherPem = generateKeyPairSync("ed25519").publicKey.export({ type: "spki", format: "pem" }) as string;
    expect(refusal(envelope, otherPem)).toContain("no signature");
    expect(refusal({ ...envelope, payloadType: "text/plain" }, pem)).toContain("the payload is not");
    const plain = await keys.sign("text/plain", PAYLOAD);
    expect(refusal({ ...plain, payloadType: IN_TOTO_TYPE }, pem)).toContain("no signature");
    const link = await keys.sign(IN_TOTO_TYPE, Buffer.from(JSON.stringify({ ...STATEMENT, predicateType: "x" })));
    expect(refusal(link, pem)).toContain("not one of provenance");
    for (const text of ["", "null", "{}", "[]", '{"payload":"!","payloadType":"x","signatures":[null]}']) {
      expect(refusal(text, pem)).toBeString();
    }
    const bytes: Envelope = { ...envelope, payload: "%%%" };
    expect(refusal(bytes, pem)).toContain("base64");
  });

  test("is verified only with a public key of Ed25519", () => {
    const { privateKey } = generateKeyPairSync("ed25519");
    const secret = privateKey.export({ type: "pkcs8", format: "pem" }) as string;
    const sig = sign(null, signedBytes(IN_TOTO_TYPE, PAYLOAD), privateKey).toString("base64");
    const envelope = { payload: PAYLOAD.toString("base64"), payloadType: IN_TOTO_TYPE, signatures: [{ sig }] };
    expect(refusal(envelope, secret)).toContain("not a public key");
    expect(refusal(envelope, "")).toContain("not a public key");
    const rsa = generateKeyPairSync("rsa", { modulusLength: 2048 }).publicKey;
    expect(refusal(envelope, rsa.export({ type: "spki", format: "pem" }) as string)).toContain("Ed25519");
  });
});
