import { inspect } from "bun";

/**
 * The reason for which a promise was rejected. The `rejects` and `resolves` of Bun's `expect` run the event loop inside
 * the matcher, which can stall; this awaits, as all other code does.
 * @throws Error when the promise was fulfilled
 */
export async function failureOf(promise: unknown): Promise<unknown> {
  let value: unknown;
  try {
    value = await promise;
  } catch (error) {
    return error;
  }
  throw new Error(`it did not fail, but gave ${inspect(value)}`);
}

/**
 * A function that throws the reason of a rejected promise, for `toThrow`, which accepts only functions.
 * @throws Error when the promise was fulfilled
 */
export async function throwing(promise: unknown): Promise<() => never> {
  const error = await failureOf(promise);
  return () => {
    throw error;
  };
}
