/** Loaded before the ring `network`: starts what all its files of tests share. */
import { afterAll, beforeAll } from "bun:test";
import { Ring, ring, share } from "./ring.ts";

/** The import of a Debian on a loaded machine, and its build where nobody has built it. */
const START_MS_MAX = 1_500_000;
const END_MS_MAX = 60_000;

beforeAll(async () => share(await Ring.start()), START_MS_MAX);

afterAll(async () => {
  await ring()[Symbol.asyncDispose]();
  share(null);
}, END_MS_MAX);
