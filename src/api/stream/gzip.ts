import type { Gunzip, Gzip } from "node:zlib";
import { ApiError } from "../../domain/errors.ts";

type Chunks = AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>;

/** Fast rather than small, because a client waits for the result. */
const GZIP_LEVEL = 4;

/** Compresses chunks. It reads ahead of its reader by zlib's buffers only. */
export async function* gzipChunks(chunks: AsyncIterable<Uint8Array>): Chunks {
  // Loaded only here, because few daemons need it.
  const { createGzip } = await import("node:zlib");
  yield* through(chunks, createGzip({ level: GZIP_LEVEL }));
}

/**
 * Expands chunks, ahead of its reader by zlib's buffers only, whatever the size of the result.
 * @throws ApiError `validation_error` for bytes that are not gzip, or end early; as `chunks` does
 */
export async function* gunzipChunks(chunks: AsyncIterable<Uint8Array>): Chunks {
  const { createGunzip } = await import("node:zlib");
  try {
    yield* through(chunks, createGunzip());
  } catch (error) {
    const isOfZlib = error instanceof Error && String((error as NodeJS.ErrnoException).code).startsWith("Z_");
    if (!isOfZlib) throw error;
    throw new ApiError("validation_error", `the body is not valid gzip: ${error.message}`, {}, { cause: error });
  }
}

async function* through(chunks: AsyncIterable<Uint8Array>, zlib: Gzip | Gunzip): Chunks {
  const fed = feed(chunks, zlib);
  // The loop below throws the failure; this keeps it from being an unhandled rejection.
  fed.catch((error) => zlib.destroy(error));
  for await (const chunk of zlib) yield chunk as Uint8Array<ArrayBuffer>;
  await fed;
}

async function feed(chunks: AsyncIterable<Uint8Array>, zlib: Gzip | Gunzip): Promise<void> {
  for await (const chunk of chunks) {
    if (zlib.destroyed) return;
    // zlib calls back when it has read the bytes: the buffer may be reused then.
    await new Promise<void>((resolve) => {
      zlib.once("close", resolve);
      zlib.write(chunk, () => {
        zlib.off("close", resolve);
        resolve();
      });
    });
  }
  zlib.end();
}
