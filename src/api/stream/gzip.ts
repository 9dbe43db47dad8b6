import type { Gzip } from "node:zlib";

type Chunks = AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>;

/** Fast rather than small, because a client waits for the result. */
const GZIP_LEVEL = 4;

/** Compresses chunks. It reads ahead of its reader by zlib's buffers only. */
export async function* gzipChunks(chunks: Chunks): Chunks {
  // Loaded only here, because few daemons need it.
  const { createGzip } = await import("node:zlib");
  const gzip = createGzip({ level: GZIP_LEVEL });
  const fed = feed(chunks, gzip);
  // The loop below throws the failure; this keeps it from being an unhandled rejection.
  fed.catch((error) => gzip.destroy(error));
  for await (const chunk of gzip) yield chunk as Uint8Array<ArrayBuffer>;
  await fed;
}

async function feed(chunks: Chunks, gzip: Gzip): Promise<void> {
  for await (const chunk of chunks) {
    if (gzip.destroyed) return;
    // zlib calls back when it has read the bytes: the buffer may be reused then.
    await new Promise<void>((resolve) => {
      gzip.once("close", resolve);
      gzip.write(chunk, () => {
        gzip.off("close", resolve);
        resolve();
      });
    });
  }
  gzip.end();
}
