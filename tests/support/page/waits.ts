import { expect } from "bun:test";
import type { Locator, Page } from "playwright-core";
import { until } from "../waiting.ts";

/**
 * Waits until `read` returns `expected`.
 * @throws what `expect` throws about the last value, when none was equal in time
 */
export async function becomes<T>(read: () => Promise<T> | T, expected: NoInfer<T>): Promise<void> {
  let last: T | undefined;
  const isEqual = async () => {
    last = await read();
    return Bun.deepEquals(last, expected);
  };
  await until("it is as expected", isEqual).catch(() => undefined);
  expect(last).toEqual(expected as T);
}

/** Waits until an element has the focus. */
export async function hasFocus(target: Locator): Promise<void> {
  await target.and(target.page().locator(":focus")).waitFor();
}

/**
 * Resolves when the page has drawn what follows from all that happened to it before, effects of its components included:
 * what has not happened by then, does not.
 */
export async function drawn(page: Page): Promise<void> {
  await page.evaluate(async () => {
    // The first frame has effects, which run before the page is idle and may change the second frame.
    for (let frame = 0; frame < 3; frame++) {
      await new Promise((resolve) => requestAnimationFrame(() => requestIdleCallback(resolve)));
    }
  });
}

/** Holds the responses to matching requests until the returned function is called. */
export async function held(page: Page, pattern: RegExp): Promise<() => void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  await page.route(pattern, async (route) => {
    await promise;
    // The page may have left the request.
    await route.continue().catch(() => undefined);
  });
  return resolve;
}
