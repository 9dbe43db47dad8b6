import { createHash, createPublicKey, type KeyObject, verify } from "node:crypto";
import { type Envelope, IN_TOTO_TYPE, signedBytes } from "../../domain/receipts/envelope.ts";
import { PREDICATE_TYPE, STATEMENT_TYPE, type Statement } from "../../domain/receipts/statement.ts";

/** A receipt that does not hold. The message says why, for people. */
export class ReceiptError extends Error {
  override readonly name = "ReceiptError";
}

/** The id of a public key: SHA-256 of its SubjectPublicKeyInfo in DER, in hexadecimal. */
export function keyIdOf(key: KeyObject): string {
  return createHash("sha256")
    .update(key.export({ type: "spki", format: "der" }))
    .digest("hex");
}

/** A public key in PEM. @throws ReceiptError when it is not a public key of Ed25519 */
export function parseKey(pem: string): KeyObject {
  let key: KeyObject;
  try {
    // `createPublicKey` would also take a private key, which must stay where it is.
    if (!pem.includes("-----BEGIN PUBLIC KEY-----")) throw new Error("it begins differently");
    key = createPublicKey(pem);
  } catch (error) {
    throw new ReceiptError("the key is not a public key in PEM", { cause: error });
  }
  if (key.asymmetricKeyType !== "ed25519") throw new ReceiptError("the key is not a key of Ed25519");
  return key;
}

/**
 * Verifies a receipt without an appliance, and returns its statement, which is read from the very bytes that are signed.
 * @param text the envelope in JSON
 * @throws ReceiptError when no signature is one of the key, or the signed statement is of another kind
 */
export function verifyReceipt(text: string, key: KeyObject): Statement {
  const envelope = parseEnvelope(text);
  if (envelope.payloadType !== IN_TOTO_TYPE) throw new ReceiptError(`the payload is not ${IN_TOTO_TYPE}`);
  const payload = bytesOf(envelope.payload);
  const signed = signedBytes(envelope.payloadType, payload);
  // The id of a key is only a hint, so every signature counts.
  if (!envelope.signatures.some(({ sig }) => verify(null, signed, key, bytesOf(sig)))) {
    throw new ReceiptError("no signature of the receipt is one of this key: it was changed, or another key signed it");
  }
  const statement = parseJson(payload.toString("utf8")) as Partial<Statement> | null;
  if (statement?._type !== STATEMENT_TYPE || statement.predicateType !== PREDICATE_TYPE) {
    throw new ReceiptError("the signed statement is not one of provenance");
  }
  if (!Array.isArray(statement.subject) || statement.predicate?.buildDefinition === undefined) {
    throw new ReceiptError("the signed statement is not complete");
  }
  return statement as Statement;
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new ReceiptError("the receipt is not JSON", { cause: error });
  }
}

function parseEnvelope(text: string): Envelope {
  const value = parseJson(text) as Partial<Envelope> | null;
  const { payload, payloadType, signatures } = value ?? {};
  const isComplete = typeof payload === "string" && typeof payloadType === "string" && Array.isArray(signatures);
  if (!isComplete || !signatures.every((signature) => typeof signature?.sig === "string")) {
    throw new ReceiptError("the receipt is not an envelope with payload, payloadType and signatures");
  }
  return { payload, payloadType, signatures };
}

/** Bytes of base64 in one of its two alphabets, as DSSE allows. */
function bytesOf(text: string): Buffer {
  if (!/^[A-Za-z0-9+/_-]*={0,2}$/.test(text)) throw new ReceiptError("the receipt has bytes that are not base64");
  return Buffer.from(text, "base64");
}
