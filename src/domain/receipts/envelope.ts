/** Type of the payload of an in-toto attestation. */
export const IN_TOTO_TYPE = "application/vnd.in-toto+json";

/** A signed payload: an envelope of DSSE v1.0 (secure-systems-lab/dsse, envelope.md), with its field names. */
export interface Envelope {
  /** in base64 */
  readonly payload: string;
  readonly payloadType: string;
  readonly signatures: readonly EnvelopeSignature[];
}

export interface EnvelopeSignature {
  /** a hint for the choice of a key, which proves nothing */
  readonly keyid: string;
  /** in base64 */
  readonly sig: string;
}

/**
 * The bytes that are signed: DSSE's pre-authentication encoding (protocol.md). Lengths are in `bytes`, in decimal. It has the
 * type, too, so that a signature of a payload of one type does not hold for another type.
 */
export function signedBytes(payloadType: string, payload: Uint8Array): Buffer {
  const head = `DSSEv1 ${Buffer.byteLength(payloadType)} ${payloadType} ${payload.byteLength} `;
  return Buffer.concat([Buffer.from(head), payload]);
}
