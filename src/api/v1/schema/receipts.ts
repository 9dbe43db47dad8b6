import { type Static, Type } from "@sinclair/typebox";

/** A receipt: an envelope of DSSE, with its field names. */
export const Receipt = Type.Object({
  payload: Type.String({ description: "a statement of in-toto with SLSA provenance, in base64" }),
  payloadType: Type.String({ examples: ["application/vnd.in-toto+json"] }),
  signatures: Type.Array(
    Type.Object({
      keyid: Type.String({ description: "id of the key; it proves nothing" }),
      sig: Type.String({ description: "signature of DSSE's pre-authentication encoding by Ed25519, in base64" }),
    }),
  ),
});
export type Receipt = Static<typeof Receipt>;

/** The key that verifies receipts. */
export const PublicReceiptKey = Type.Object({
  keyid: Type.String({ description: "SHA-256 of the key's SubjectPublicKeyInfo in DER, in hexadecimal" }),
  algorithm: Type.Literal("ed25519"),
  public_key: Type.String({ description: "the public key in PEM" }),
});
export type PublicReceiptKey = Static<typeof PublicReceiptKey>;
