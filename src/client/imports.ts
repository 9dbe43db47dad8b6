import { given } from "../domain/given.ts";
import { answerOf, type Client } from "./client.ts";
import { onceStarted } from "./operation-events.ts";
import { type CompleteOptions, complete } from "./operations.ts";
import { type Place, pathOfPlace, placeOfInstance } from "./place.ts";
import type { CheckpointRequest, CheckpointResult, ImportRequest, ImportResult, LoadRequest } from "./types.ts";

/**
 * Imports an image from a registry, and waits for its end.
 * @throws OperationError, ResponseError, UnreachableError; the reason of `signal`, which cancels the import
 */
export async function importImage(
  client: Client,
  request: ImportRequest,
  options: CompleteOptions = {},
): Promise<ImportResult> {
  options.signal?.throwIfAborted();
  const { uuid } = await answerOf(client.v1.images.import.post(request));
  return (await complete(client, uuid, options)).result as ImportResult;
}

/** Imports an image from an archive that was uploaded, and waits for its end. @throws as `importImage` */
export async function loadImage(
  client: Client,
  request: LoadRequest,
  options: CompleteOptions = {},
): Promise<ImportResult> {
  options.signal?.throwIfAborted();
  const { uuid } = await answerOf(client.v1.images.load.post(request));
  return (await complete(client, uuid, options)).result as ImportResult;
}

/**
 * Starts a checkpoint of an instance as soon as its command has begun, or of a sandbox, and returns the id of the operation.
 * @throws ResponseError, UnreachableError
 */
export async function startCheckpoint(
  client: Client,
  place: Place | string,
  request: CheckpointRequest,
): Promise<string> {
  const at = placeOfInstance(place);
  const path = `${pathOfPlace(at)}/checkpoint`;
  const start = () => client.exchange<{ readonly uuid: string }>("POST", path, { json: request });
  const { uuid } = at.sandbox === undefined ? await onceStarted(client, at.instance, start) : await start();
  return uuid;
}

/**
 * Makes an image of the files of a running instance or sandbox, which continues, and waits for the image.
 * @throws as `importImage`; `signal` cancels the checkpoint, not the instance
 */
export async function checkpoint(
  client: Client,
  place: Place | string,
  { tag, timeout, ...options }: CheckpointRequest & CompleteOptions = {},
): Promise<CheckpointResult> {
  options.signal?.throwIfAborted();
  const request = given({ tag, timeout });
  return (await complete(client, await startCheckpoint(client, place, request), options)).result as CheckpointResult;
}
