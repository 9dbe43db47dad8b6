import { createPrivateKey, createPublicKey, generateKeyPairSync, type KeyObject, sign } from "node:crypto";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { type Envelope, signedBytes } from "../../domain/receipts/envelope.ts";
import { writeFileAtomic } from "../../system/scratch.ts";
import { keyIdOf } from "./verification.ts";

const NAME = "receipts.pem";

interface Key {
  readonly id: string;
  readonly secret: KeyObject;
  readonly publicKey: KeyObject;
}

/**
 * The key of Ed25519 that signs receipts: a file (0600) in the directory of the keys, in PEM. It is made when it is first
 * needed, stays for the life of the appliance, and is part of its backups.
 */
export class ReceiptKey {
  readonly #directory: string;
  #key: Promise<Key> | null = null;

  constructor(directory: string) {
    this.#directory = directory;
  }

  /** The public key in PEM, and its id. @throws Error when the file is damaged */
  async read(): Promise<{ readonly id: string; readonly pem: string }> {
    const { id, publicKey } = await this.#open();
    return { id, pem: publicKey.export({ type: "spki", format: "pem" }) as string };
  }

  /** Signs a payload. @throws Error when the file is damaged */
  async sign(payloadType: string, payload: Uint8Array): Promise<Envelope> {
    const { id, secret } = await this.#open();
    const sig = sign(null, signedBytes(payloadType, payload), secret).toString("base64");
    return { payload: Buffer.from(payload).toString("base64"), payloadType, signatures: [{ keyid: id, sig }] };
  }

  async #open(): Promise<Key> {
    this.#key ??= this.#readOrMake();
    try {
      return await this.#key;
    } catch (error) {
      // The next request tries again: the file may be readable then.
      this.#key = null;
      throw error;
    }
  }

  async #readOrMake(): Promise<Key> {
    const path = join(this.#directory, NAME);
    let pem = await readFile(path, "utf8").catch((error: NodeJS.ErrnoException) => {
      if (error.code !== "ENOENT") throw error;
      return null;
    });
    if (pem === null) {
      pem = generateKeyPairSync("ed25519").privateKey.export({ type: "pkcs8", format: "pem" }) as string;
      await writeFileAtomic(path, pem);
    }
    const secret = createPrivateKey(pem);
    if (secret.asymmetricKeyType !== "ed25519") throw new Error(`${path} is not a key of Ed25519`);
    const publicKey = createPublicKey(secret);
    return { id: keyIdOf(publicKey), secret, publicKey };
  }
}
