/** Preloaded for the ring `network`: starts the parts that all its test files share. */
import { afterAll, beforeAll } from "bun:test";
import { Ring, ring, share } from "./ring.ts";

/** Enough to import a Debian on a loaded machine, and to build it where it is missing. */
const START_MS_MAX = 1_500_000;
const END_MS_MAX = 60_000;

beforeAll(async () => share(await Ring.start()), START_MS_MAX);

afterAll(async () => {
  await ring()[Symbol.asyncDispose]();
  share(null);
}, END_MS_MAX);
