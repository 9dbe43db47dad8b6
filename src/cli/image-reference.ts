import { answerOf, type Client } from "../client/client.ts";
import { ResponseError } from "../client/errors.ts";
import { imageIdOf } from "../client/transfers.ts";
import type { ImportResult } from "../client/types.ts";
import { given } from "../domain/given.ts";
import { parseUuid } from "../domain/ids.ts";
import { isTag } from "../domain/image.ts";
import type { Io } from "./io.ts";
import { successOf } from "./wait.ts";

/** The image that a reference names, as a request names it. One of a registry is imported, and tagged with its reference. */
export async function imageOf(client: Client, io: Io, reference: string): Promise<string> {
  if (reference.startsWith("tag:") || parseUuid(reference) !== null) return reference;
  const tag = isTag(reference) ? reference : undefined;
  const imported = tag === undefined ? null : await taggedImage(client, tag);
  if (imported !== null) return imported;
  const { uuid } = await answerOf(client.v1.images.import.post({ registry: reference, ...given({ tag }) }));
  const operation = await successOf(client, { io, id: uuid, label: `importing ${reference}` });
  return (operation.result as ImportResult).image;
}

/** The image with a tag; null when there is none. */
async function taggedImage(client: Client, tag: string): Promise<string | null> {
  return await orMissing(() => imageIdOf(client, `tag:${tag}`));
}

/** The result of a request; null when what it is about does not exist. */
export async function orMissing<T>(request: () => Promise<T>): Promise<T | null> {
  try {
    return await request();
  } catch (error) {
    if (error instanceof ResponseError && error.status === 404) return null;
    throw error;
  }
}
