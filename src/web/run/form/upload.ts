import { headedAddressOf } from "../../data/api.ts";
import { Problem } from "../../data/problem.ts";
import { csrf, endSession, refusalOf } from "../../data/session.ts";

export interface UploadOptions {
  /** called with the share that was sent, from 0 to 1 */
  readonly onProgress: (share: number) => void;
  readonly signal: AbortSignal;
}

/**
 * Uploads a file from the user's machine, and returns its uuid. Not by `fetch`, which does not report progress.
 * @throws Problem, the reason of `signal`
 */
export function uploadWithProgress(file: Blob, { onProgress, signal }: UploadOptions): Promise<string> {
  signal.throwIfAborted();
  const { promise, resolve, reject } = Promise.withResolvers<string>();
  const exchange = new XMLHttpRequest();
  exchange.open("POST", headedAddressOf("/v1/files"));
  exchange.setRequestHeader("content-type", "application/octet-stream");
  const key = csrf();
  exchange.setRequestHeader("x-csrf-token", key);
  exchange.upload.addEventListener("progress", ({ loaded, total }) => onProgress(total === 0 ? 1 : loaded / total));
  exchange.addEventListener("load", () => {
    const { status, responseText } = exchange;
    if (status === 401 && key === csrf()) endSession();
    resolve(uuidIn(new Response(responseText, { status })));
  });
  exchange.addEventListener("error", () =>
    reject(new Problem("The appliance does not answer.", { code: "unreachable" })),
  );
  exchange.addEventListener("abort", () => reject(signal.reason));
  signal.addEventListener("abort", () => exchange.abort(), { once: true });
  exchange.send(file);
  return promise;
}

/** @throws Problem */
async function uuidIn(response: Response): Promise<string> {
  if (!response.ok) throw await refusalOf(response);
  return ((await response.json()) as { uuid: string }).uuid;
}
