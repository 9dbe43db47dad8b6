import { Elysia } from "elysia";
import type { ImageId } from "../../../domain/ids.ts";
import { ANY_TOKEN, about, jsonSpec } from "../../route.ts";
import { PublicReceiptKey, Receipt } from "../schema/receipts.ts";
import type { Surface } from "../surface.ts";

const RECEIPT = {
  ...about({
    id: "imageReceipt",
    tag: "Images",
    summary: "Get a signed statement of how an image came to be: in-toto with SLSA provenance, in an envelope of DSSE",
    responses: { 200: jsonSpec("the receipt; its subject is the manifest of the image's OCI archive", Receipt) },
    errors: ["not_found", "conflict", "too_many_requests"],
  }),
};

const KEY = {
  ...about({
    id: "receiptKey",
    tag: "Images",
    summary: "Read the public key that verifies the receipts of the appliance",
    responses: { 200: jsonSpec("the key", PublicReceiptKey) },
  }),
};

export function receiptRoutes({ access, service: { branches } }: Surface) {
  return new Elysia()
    .use(access)
    .get(
      "/images/:uuid/receipt",
      async ({ request, server, principal, params }): Promise<Receipt> => {
        // The digests of large layers take minutes when they are computed for the first time.
        server?.timeout(request, 0);
        const id = params.uuid as ImageId;
        const { signatures, ...rest } = await branches.receipt(principal, { id, signal: request.signal });
        return { ...rest, signatures: [...signatures] };
      },
      // It has the requests and the networks of operations.
      { reads: "operations:read", ...RECEIPT },
    )
    .get(
      "/receipts/key",
      async (): Promise<PublicReceiptKey> => {
        const { id, pem } = await branches.receiptKey();
        return { keyid: id, algorithm: "ed25519", public_key: pem };
      },
      { reads: ANY_TOKEN, ...KEY },
    );
}
