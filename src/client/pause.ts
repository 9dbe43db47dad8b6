/** Waits for a time in `milliseconds`. @throws the reason of `signal`, as soon as it fires */
export async function pause(ms: number, signal?: AbortSignal): Promise<void> {
  signal?.throwIfAborted();
  const over = Promise.withResolvers<void>();
  const timer = setTimeout(over.resolve, ms);
  const leave = (): void => over.reject(signal?.reason);
  signal?.addEventListener("abort", leave, { once: true });
  try {
    await over.promise;
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", leave);
  }
}
