import { headedAddressOf } from "./api.ts";
import { Problem } from "./problem.ts";
import { csrf, endSession, refusalOf } from "./session.ts";

export interface UploadOptions {
  /** such as `/v1/files`, with its query */
  readonly path: string;
  readonly method: "POST" | "PUT";
  /** called with the share that was sent, from 0 to 1 */
  readonly onProgress: (share: number) => void;
  readonly signal: AbortSignal;
}

/**
 * Uploads a file from the user's machine, and returns the answer, a JSON object. Not by `fetch`, which does not report
 * progress.
 * @throws Problem, the reason of `signal`
 */
export function uploadWithProgress<T>(file: Blob, options: UploadOptions): Promise<T> {
  const { path, method, onProgress, signal } = options;
  signal.throwIfAborted();
  const { promise, resolve, reject } = Promise.withResolvers<T>();
  const exchange = new XMLHttpRequest();
  exchange.open(method, headedAddressOf(path));
  exchange.setRequestHeader("content-type", "application/octet-stream");
  const key = csrf();
  exchange.setRequestHeader("x-csrf-token", key);
  exchange.upload.addEventListener("progress", ({ loaded, total }) => onProgress(total === 0 ? 1 : loaded / total));
  exchange.addEventListener("load", () => {
    const { status, responseText } = exchange;
    if (status === 401 && key === csrf()) endSession();
    resolve(answerIn(new Response(responseText, { status })));
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
async function answerIn<T>(response: Response): Promise<T> {
  if (!response.ok) throw await refusalOf(response);
  return (await response.json()) as T;
}
