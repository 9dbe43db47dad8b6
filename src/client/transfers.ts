import { sha256 } from "@noble/hashes/sha2.js";
import { bytesToHex } from "@noble/hashes/utils.js";
import { given } from "../domain/given.ts";
import { answerOf, type CallOptions, type Client } from "./client.ts";
import { encodedPath } from "./encoded-path.ts";
import { AnswerError, ResponseError } from "./errors.ts";
import type { DirectoryListing, Image, UploadedFile } from "./types.ts";

/** A file or directory of an image. */
export interface Inspected {
  /** uuid */
  readonly image: string;
  /** absolute; bytes where the path need not be UTF-8 */
  readonly path: string | Uint8Array;
  readonly signal?: AbortSignal;
}

/** The content of a file; symlinks are followed inside the image. @throws ResponseError, UnreachableError */
export function downloadFile(client: Client, file: Inspected): Promise<Response> {
  return inspect(client, "download", file);
}

/** A directory or a file as a tar archive, which stays compressed if `encoding` is gzip. @throws as `downloadFile` */
export function downloadArchive(
  client: Client,
  { encoding, ...directory }: Inspected & { readonly encoding: "gzip" | "identity" },
): Promise<Response> {
  return inspect(client, "archive", directory, { encoding });
}

/** The entries of a directory. @throws as `downloadFile` */
export async function listDirectory(client: Client, directory: Inspected): Promise<DirectoryListing["items"]> {
  const response = await inspect(client, "list", directory);
  return ((await response.json()) as DirectoryListing).items;
}

/** A directory as the appliance lists it: JSON, or lines for people if `isText` is true. @throws as `downloadFile` */
export function downloadListing(
  client: Client,
  { image, path, isText }: { readonly image: string; readonly path: string; readonly isText: boolean },
): Promise<Response> {
  const query = { path, ...(isText ? { text: true } : {}) };
  return client.call("GET", `/inspect/${encodeURIComponent(image)}/list`, { query, deadline: false });
}

/** The image as an OCI layout in a tar archive. @throws as `downloadFile` */
export function downloadImage(client: Client, image: string, signal: AbortSignal): Promise<Response> {
  return client.call("GET", `/images/${encodeURIComponent(image)}/save`, { deadline: false, signal });
}

/** Stores the bytes of a body, and returns the file's uuid. @throws as `downloadFile` */
export async function uploadFile(
  client: Client,
  body: Blob | ReadableStream<Uint8Array>,
  options: Pick<CallOptions, "signal"> = {},
): Promise<string> {
  const response = await client.call("POST", "/files", { ...options, body, deadline: false });
  return ((await response.json()) as UploadedFile).uuid;
}

export interface ContentOptions extends Pick<CallOptions, "signal"> {
  /** lower-case hexadecimal SHA-256 of the content, if the caller has it; default is to compute it */
  readonly sha256?: string;
}

/**
 * The uuid of the file with this content, which is uploaded only if the appliance does not have it yet.
 * @throws ResponseError, UnreachableError, the reason of `signal`
 */
export async function uploadContent(
  client: Client,
  content: Blob | Uint8Array<ArrayBuffer> | string,
  { signal, sha256: known }: ContentOptions = {},
): Promise<string> {
  const body = content instanceof Blob ? content : new Blob([content]);
  const options = given({ signal });
  const query = { sha256: known ?? (await hashOf(body, signal)) };
  try {
    return (await answerOf(client.v1.files.get({ query, fetch: options }))).uuid;
  } catch (error) {
    // Missing, or the token may write files but not read them.
    if (!(error instanceof ResponseError && (error.status === 404 || error.status === 403))) throw error;
  }
  return await uploadFile(client, body, options);
}

/** Lower-case hexadecimal SHA-256 of a stream, piece by piece, which the function of browsers cannot do. */
async function hashOf(content: Blob, signal?: AbortSignal): Promise<string> {
  const hash = sha256.create();
  const reader = content.stream().getReader();
  try {
    for (let step = await reader.read(); !step.done; step = await reader.read()) {
      signal?.throwIfAborted();
      hash.update(step.value);
    }
  } finally {
    await reader.cancel();
  }
  return bytesToHex(hash.digest());
}

/** The uuid of an image that is given as `<uuid>` or `tag:<name>`. @throws ResponseError, UnreachableError, AnswerError */
export async function imageIdOf(client: Client, reference: string): Promise<string> {
  if (!reference.startsWith("tag:")) return reference;
  const query = { tag: reference.slice("tag:".length) };
  const response = await client.call("GET", "/inspect/", { query });
  // Browsers hide the target of a redirection, and follow it.
  if (response.type === "opaqueredirect") {
    const response = await client.call("GET", "/inspect/", { query, redirect: "follow" });
    return ((await response.json()) as Image).uuid;
  }
  const id = /\/inspect\/([0-9a-f-]{36})\/?$/.exec(response.headers.get("location") ?? "")?.[1];
  if (id !== undefined) return id;
  throw new AnswerError(`the appliance did not resolve the image ${reference}`);
}

/** Whether an image has a file or directory; symlinks are followed inside the image. @throws as `downloadFile` */
export async function imageHas(
  client: Client,
  { image, path }: { readonly image: string; readonly path: string },
): Promise<boolean> {
  try {
    await client.call("HEAD", `/inspect/${encodeURIComponent(image)}/`, { query: { path } });
    return true;
  } catch (error) {
    if (error instanceof ResponseError && error.status === 404) return false;
    throw error;
  }
}

/** Encodes the query, because Eden would encode a byte string as UTF-8 text. */
function inspect(
  client: Client,
  view: "download" | "archive" | "list",
  { image, path, signal }: Inspected,
  options: CallOptions = {},
): Promise<Response> {
  return client.call("GET", `/inspect/${encodeURIComponent(image)}/${view}`, {
    ...options,
    ...given({ signal }),
    rawQuery: `path=${encodedPath(path)}`,
    deadline: false,
  });
}
