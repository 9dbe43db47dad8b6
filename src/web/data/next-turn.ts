/** Resolves after pending input and drawing. */
export function nextTurn(): Promise<void> {
  const { scheduler } = globalThis as { readonly scheduler?: { yield?(): Promise<void> } };
  if (scheduler?.yield !== undefined) return scheduler.yield();
  const { promise, resolve } = Promise.withResolvers<void>();
  // A message arrives after pending tasks; a timer would fire 4 ms later.
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => {
    port1.close();
    resolve();
  };
  port2.postMessage(null);
  return promise;
}
