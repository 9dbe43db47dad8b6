import { addressOf } from "../../data/api.ts";
import { Problem } from "../../data/problem.ts";
import { csrf } from "../../data/session.ts";

export interface UploadOptions {
  /** told how much was sent, from 0 to 1 */
  readonly onProgress: (share: number) => void;
  readonly signal: AbortSignal;
}

/**
 * Stores a file of the reader's machine, and gives its uuid. `fetch` does not tell how much was sent, so this does without.
 * @throws Problem, the reason of `signal`
 */
export function uploadWithProgress(file: Blob, { onProgress, signal }: UploadOptions): Promise<string> {
  signal.throwIfAborted();
  const { promise, resolve, reject } = Promise.withResolvers<string>();
  const exchange = new XMLHttpRequest();
  exchange.open("POST", addressOfFiles());
  exchange.setRequestHeader("content-type", "application/octet-stream");
  exchange.setRequestHeader("x-csrf-token", csrf());
  exchange.upload.addEventListener("progress", ({ loaded, total }) => onProgress(total === 0 ? 1 : loaded / total));
  exchange.addEventListener("load", () => {
    const { status, responseText } = exchange;
    if (status === 201 || status === 200) resolve((JSON.parse(responseText) as { uuid: string }).uuid);
    else reject(refusal(status, responseText));
  });
  exchange.addEventListener("error", () =>
    reject(new Problem("The appliance does not answer.", { code: "unreachable" })),
  );
  exchange.addEventListener("abort", () => reject(signal.reason));
  signal.addEventListener("abort", () => exchange.abort(), { once: true });
  exchange.send(file);
  return promise;
}

/** The address of the interface for requests that have header fields, which is that of links without their secret. */
function addressOfFiles(): string {
  return addressOf("/v1/files").replace(/\/~[^/]*/, "");
}

function refusal(status: number, text: string): Problem {
  try {
    const { error, message, details } = JSON.parse(text) as {
      error: string;
      message: string;
      details?: Record<string, unknown>;
    };
    return new Problem(message, { status, code: error, details: details ?? {} });
  } catch (error) {
    // SyntaxError: a proxy sent the answer.
    return new Problem(`HTTP status ${status}`, { status, code: "no error object", cause: error });
  }
}
