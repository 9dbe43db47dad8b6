/**
 * The chunks of a stream, on arrival. The stream is cancelled when the caller leaves the loop.
 * @param failure returns the error to throw when the stream breaks off; absent: the error of the stream
 */
export async function* chunksOf<Chunk>(
  stream: ReadableStream<Chunk>,
  failure: (error: Error) => unknown = (error) => error,
): AsyncGenerator<Chunk, void, undefined> {
  // Streams of some browsers are not async iterables.
  const reader = stream.getReader();
  try {
    for (;;) {
      const step = await reader.read().catch((error: Error) => {
        throw failure(error);
      });
      if (step.done) return;
      yield step.value;
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

/** The lines of a text on arrival: those that end in one chunk at a time. Text after the last line end is left out. */
export async function* linesOf(
  body: ReadableStream<Uint8Array<ArrayBuffer>>,
  failure?: (error: Error) => unknown,
): AsyncGenerator<readonly string[], void, undefined> {
  let rest = "";
  for await (const chunk of chunksOf(body.pipeThrough(new TextDecoderStream()), failure)) {
    const lines = `${rest}${chunk}`.split("\n");
    rest = lines.pop() ?? "";
    if (lines.length > 0) yield lines;
  }
}
